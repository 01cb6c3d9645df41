"""The cartridges of a pool: finding the next one to write, and the rules on what may be written to at
all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from nightferry.clock import Clock
from nightferry.destination.tape.drives.base import MOST_LOST, RECORD_BYTES, EndOfMedium
from nightferry.destination.tape.format.cartridge import Audit, Cartridge, not_ours
from nightferry.destination.tape.format.label import LABEL_BYTES, Label, new_label
from nightferry.destination.tape.format.layout import Trailer
from nightferry.destination.tape.format.readback import look_again
from nightferry.destination.tape.library.bay import Bay
from nightferry.destination.tape.library.bays import Bays
from nightferry.destination.tape.library.changer import doubled
from nightferry.destination.tape.library.pool import WRITING, Pool, is_being_written, settled
from nightferry.destination.tape.library.shortage import Need, Shortage
from nightferry.destination.tape.library.watch import Watch
from nightferry.errors import (
    MediumDamaged,
    NoScratch,
    PositionLost,
    Unavailable,
    WriteProtected,
    WrongCartridge,
)
from nightferry.model.records import CartridgeRecord, CartridgeState
from nightferry.progress import Cancel
from nightferry.units import counted, format_size

_log = logging.getLogger(__name__)
_POLL_S = 5.0
_CANCEL_S = 0.5
_SAY_EVERY_S = 300.0


def gives_up(barcode: str) -> str:
    """How a cartridge that copies live on becomes scratch."""
    return (
        f"nothing was written; `nightferry media retire {barcode} --reason TEXT` gives up its copies, then "
        f"`nightferry media erase --yes {barcode}` writes over it"
    )


class Stock:
    """One pool's cartridges in one library.

    Args:
        pool: The pool.
        bays: The drives.
        watch: The catalog's records of the cartridges.
        cartridge_bytes: What a cartridge holds, to say how many are missing.
        clock: Time.
        pages: Text by name that goes onto a cartridge behind its label, so that it explains itself.
    """

    def __init__(
        self,
        pool: Pool,
        bays: Bays,
        watch: Watch,
        cartridge_bytes: int,
        clock: Clock,
        pages: Mapping[str, bytes],
    ) -> None:
        self.destination = watch.destination
        self.pool = pool
        self.watch = watch
        self.register = watch.register
        self.pages = pages
        self._bays = bays
        self._clock = clock
        besides = bays.reserve_bytes + LABEL_BYTES + sum(map(len, pages.values()))
        # Early warning comes with a record that is on the cartridge: what it takes are whole records.
        records = (cartridge_bytes - besides) // RECORD_BYTES
        self._shortage = Shortage(max(records * RECORD_BYTES, cartridge_bytes // 2), bays.reserve_bytes)
        self._lock = threading.Lock()
        self._claims: dict[str, Bay] = {}
        self._failed: dict[str, Bay] = {}
        """Cartridges at which a drive failed, until another has tried."""
        self._refused: set[str] = set()
        """Write-protected cartridges: not asked for again before they were out of the library."""
        self.adopted: dict[tuple[str, int], Trailer] = {}
        """Whole copies found on cartridges that the catalog had not heard of: image and epoch → final
        trailer."""

    def ranking(self) -> Callable[[str], int]:
        """How well a drive with a cartridge in it suits a lane, by the records of this moment: an appendable one
        of the pool first, then an empty drive."""
        records = self.watch.records()

        def rank(barcode: str) -> int:
            if not barcode:
                return 1
            record = records.get(barcode)
            usable = record is not None and record.state == "appendable" and record.pool == self.pool.name
            return 0 if usable and self.pool.holds(barcode) else 2

        return rank

    def refresh(self, bay: Bay) -> None:
        """A cartridge that the catalog now says something else of is looked at again before it is
        written."""
        here = bay.cartridge
        if here is not None and here.record is not None and self.watch.record_of(here.barcode) != here.record:
            bay.cartridge = None

    @contextmanager
    def claims_of(self, bay: Bay) -> Iterator[None]:
        """What is claimed for a bay inside is given up at the end."""
        try:
            yield
        finally:
            with self._lock:
                self._claims = {barcode: owner for barcode, owner in self._claims.items() if owner is not bay}

    def writable(self, bay: Bay, need: Need, wanted: str = "") -> Cartridge:
        """A cartridge in a leased bay, proved, registered and positioned at its end; waits for media.

        Args:
            bay: The leased bay; the cartridge in it is preferred.
            need: What it is for.
            wanted: Barcode that was claimed before; another is taken when it proves unusable.

        Raises:
            NoScratch: none came in time.
        """
        if bay.is_astray():
            bay.forget()
        here = bay.cartridge
        if here is not None and here.is_appendable and self._claim(here.barcode, bay):
            here.seek(here.entry.tape_files)
            return here
        while True:
            barcode = wanted or self.claim(bay, need)
            wanted = ""
            cartridge = self._prepare(bay, barcode, need)
            if cartridge is not None:
                return cartridge
            need.taken.add(barcode)
            with self._lock:
                self._claims.pop(barcode, None)

    def reserve(self, bay: Bay, need: Need) -> str:
        """The cartridge that an image begins on, from now on kept for ``bay``: the one in it, else the next one of
        the pool; nothing is mounted for that.

        Raises:
            NoScratch, Cancelled: see ``claim``.
        """
        if bay.is_astray():
            bay.forget()
        here = bay.cartridge
        if here is not None and here.is_appendable and self._claim(here.barcode, bay):
            return here.barcode
        return self.claim(bay, need)

    def claim(self, bay: Bay, need: Need) -> str:
        """The next cartridge of the pool, from now on kept for ``bay``; waits for media.

        Raises:
            NoScratch: none came in time; says how many are missing, here and for all that waits.
            Cancelled: stopped while waiting.
        """
        while True:
            try:
                barcode = self._claim_best(bay, need.taken | {need.besides})
            except Unavailable as error:
                if need.said is None:
                    raise
                # Whoever brings cartridges opens the library's door: it is waited for as before.
                _log.info("pool %s cannot be checked: %s", self.pool.name, error)
                barcode = None
            if barcode is not None:
                self._shortage.found(bay.drive.number, need.image)
                return barcode
            need.taken.clear()
            waited = self._shortage.lacks(bay.drive.number, need, self._clock.monotonic())
            if waited >= need.wait_s:
                raise self._no_scratch(need)
            if need.said is None or waited - need.said >= _SAY_EVERY_S:
                need.said = waited
                missing = counted(self._shortage.all_cartridges()[0], "scratch cartridge")
                need.progress.say(f"waiting for {missing} in pool {self.pool.name}", self.destination)
            for _ in range(int(_POLL_S / _CANCEL_S)):
                need.cancel.check()
                self._clock.sleep(_CANCEL_S)

    def _no_scratch(self, need: Need) -> NoScratch:
        missing = self._shortage.cartridges(need)
        in_all, images = self._shortage.all_cartridges()
        text = f"no scratch cartridge in pool {self.pool.name}: {missing} missing for {format_size(need.bytes_left)}"
        if images > 1:
            text += f", {in_all} for all {images} images that wait"
        patterns = " or ".join(self.pool.barcodes)
        hint = f"put {counted(max(missing, in_all), 'blank cartridge')} for pool {self.pool.name} into the library"
        if self.pool.barcodes != ("*",):
            hint += f" (barcodes {patterns})"
        if self.pool.autolabel == "never":
            hint += " and label each with `nightferry media label BARCODE`"
        return NoScratch(
            text, subject=self.destination, hint=f"{hint}; the next run continues where this one stopped"
        )

    def _claim(self, barcode: str, bay: Bay) -> bool:
        with self._lock:
            return self._claims.setdefault(barcode, bay) is bay

    def _claim_best(self, bay: Bay, taken: set[str]) -> str | None:
        elements = self._bays.inventory()
        # A port's cartridge counts too: nobody knows which of two that bear one barcode is meant.
        taken = taken | doubled(elements).keys()
        elements = [e for e in elements if e.address.kind != "port"]
        self._refused &= {e.barcode for e in elements}
        taken |= self._refused
        ordered = self.pool.in_order(
            (e.barcode for e in elements if e.barcode and e.barcode not in taken), self.watch.records()
        )
        inside = {e.barcode for e in elements if e.address == bay.address}
        elsewhere = {e.barcode: e.address.number for e in elements if e.address.kind == "drive"}
        # What this drive failed at is for another one to judge.
        ordered.sort(key=lambda barcode: (self._failed.get(barcode) is bay, barcode not in inside))
        for barcode in ordered:
            if barcode in elsewhere and barcode not in inside and not self._bays.is_idle(elsewhere[barcode]):
                continue
            if self._claim(barcode, bay):
                return barcode
        return None

    def _prepare(self, bay: Bay, barcode: str, need: Need) -> Cartridge | None:
        """The claimed cartridge ready to be appended to; None when it is not to be written, which is then
        recorded."""
        try:
            with self._judged(bay, barcode):
                return self._made_ready(bay, barcode, need)
        except (WrongCartridge, MediumDamaged, WriteProtected, EndOfMedium) as error:
            record = self.watch.record_of(barcode)
            # Its switch was looked at: what refuses to be labelled again is written once.
            worm = isinstance(error, WriteProtected) and record is not None and record.state == "expired"
            if bay.drive.raised(error) and not worm:
                bay.spoiled.add(barcode)
                if len(bay.spoiled) > 1:
                    raise  # one cartridge after the other: it is the drive
            foreign = isinstance(error, WrongCartridge)
            self._set_aside(barcode, record, "foreign" if foreign else "full", str(error), worm=worm)
            need.progress.say(f"{error}; nothing is written to it", self.destination)
            _log.warning("nothing is written to cartridge %s: %s", barcode, error)
            if isinstance(error, EndOfMedium):
                bay.forget()
            return None

    @contextmanager
    def _judged(self, bay: Bay, barcode: str) -> Iterator[None]:
        """A drive that fails at a cartridge is tried with another; a cartridge at which two drives fail is to blame
        itself, and no night stands still on it.

        Raises:
            MediumDamaged: another drive had failed at the cartridge before.
        """
        try:
            yield
        except (Unavailable, PositionLost) as error:
            first = self._failed.setdefault(barcode, bay)
            if first is bay or not bay.drive.raised(error):
                raise
            del self._failed[barcode]
            if first.aside:
                self._bays.take_back(first, f"{bay.name} cannot use {barcode} either")
            bay.forget()
            raise MediumDamaged(
                f"neither {first.name} nor {bay.name} can use {barcode}: {error}", subject=barcode
            ) from error
        self._failed.pop(barcode, None)

    def _made_ready(self, bay: Bay, barcode: str, need: Need) -> Cartridge | None:
        """See ``_prepare``.

        Raises:
            WrongCartridge, MediumDamaged, WriteProtected, EndOfMedium: it is not to be written any more.
        """
        if not self._bays.bring(bay, barcode, need.cancel):
            return None
        record = self.watch.record_of(barcode)
        cartridge = Cartridge(bay.drive, barcode)
        self._check(cartridge, record)
        if bay.drive.is_write_protected():
            self._refused.add(barcode)
            need.progress.say(f"{barcode} is write-protected; nothing is written to it", self.destination)
            return None
        if record is None or self._is_scratch(cartridge, record):
            self.label(cartridge, self.pool.name)
        else:
            self.audit(cartridge, record)
        bay.cartridge = cartridge
        return cartridge if cartridge.is_appendable else None

    def _check(self, cartridge: Cartridge, record: CartridgeRecord | None) -> None:
        """The label must be the catalog's, and the pool's, before anything is written.

        Raises:
            WrongCartridge: they do not agree.
        """
        label, barcode = cartridge.label, cartridge.barcode
        if label is None:
            if record is not None and record.tape_files:
                raise WrongCartridge(
                    f"{barcode} is blank, but the catalog lists {record.tape_files} tape files on it",
                    subject=barcode,
                    hint=f"find the cartridge that had this barcode, or `nightferry media retire {barcode} "
                    "--reason TEXT`, which gives up its copies; then `nightferry media erase` makes this one scratch",
                )
            return
        if record is None or not record.label:
            raise WrongCartridge(
                f"{barcode} has the label {label.label}, which the catalog does not know",
                subject=barcode,
                hint=not_ours(barcode),
            )
        if label.label not in (record.label, record.former_label):
            raise WrongCartridge(
                f"{barcode} has the label {label.label}, the catalog expects {record.label}",
                subject=barcode,
                hint=not_ours(barcode),
            )
        if label.pool != self.pool.name and record.state != "expired":
            raise WrongCartridge(
                f"{barcode} is labelled for pool {label.pool}, not {self.pool.name}",
                subject=barcode,
                hint=not_ours(barcode),
            )

    def _is_scratch(self, cartridge: Cartridge, record: CartridgeRecord) -> bool:
        """Truly blank, labelled but never acknowledged as such, or expired without a live image."""
        if cartridge.label is None or record.tape_files == 0:
            return True
        if record.state != "expired":
            return False
        live = self.register.live_images(cartridge.barcode)
        if live:
            raise WrongCartridge(
                f"{cartridge.barcode} is expired but holds the live image {live[0]}",
                subject=cartridge.barcode,
                hint=gives_up(cartridge.barcode),
            )
        return True

    def label(self, cartridge: Cartridge, pool: str) -> None:
        """Labels a scratch cartridge. The catalog knows the label before the medium does.

        Raises:
            WrongCartridge: it holds live images.
            WriteProtected: it cannot be written; a WORM cartridge that is not blank refuses this.
            ConfigError: barcode or pool cannot be written on a label.
        """
        barcode = cartridge.barcode
        live = self.register.live_images(barcode)
        if live:
            raise WrongCartridge(
                f"{barcode} holds the live image {live[0]}: not labelled",
                subject=barcode,
                hint=gives_up(barcode),
            )
        known = self.watch.record_of(barcode)
        scratch = known is not None and known.state == "expired"
        label = new_label(barcode, pool, self._clock.now())
        size = len(label.render()) + sum(map(len, self.pages.values()))
        before = CartridgeRecord(
            barcode=barcode,
            destination=self.destination,
            pool=pool,
            # What was scratch stays so until the new label is on it, and until then its old one is right, too.
            state="expired" if scratch else "blank",
            label=label.label,
            former_label=cartridge.label.label if scratch and cartridge.label is not None else "",
            at=self._clock.now(),
            note="being labelled",
            mounts=known.mounts if known else 0,
            errors=known.errors if known else 0,
        )
        self.register.record(before)
        try:
            self._write_label(cartridge, label)
        except WriteProtected:
            # Nothing was written: what was known of it holds.
            if known is not None:
                self.watch.change(known, worm=known.worm or known.tape_files > 0)
            raise
        self.keep(
            cartridge,
            before,
            state="appendable",
            tape_files=1,
            used_bytes=size,
            former_label="",
            note="",
            written=True,
        )

    def _write_label(self, cartridge: Cartridge, label: Label) -> None:
        """Again where it is not known what became of it, and the cartridge has the new label, the old one, or
        none: whatever else is on it was to be written over."""
        for _ in range(MOST_LOST - 1):
            try:
                return cartridge.write_label(label, self.pages.values())
            except PositionLost as error:
                look_again(cartridge, error, lambda: None, label, None)
        return cartridge.write_label(label, self.pages.values())

    def audit(self, cartridge: Cartridge, record: CartridgeRecord) -> Audit:
        """Proves a labelled cartridge fit to be appended to and records what was found behind its known
        end.

        Raises:
            MediumDamaged: it is not fit.
        """
        try:
            found = cartridge.audit(record)
        except PositionLost as error:
            found = look_again(cartridge, error, lambda: cartridge.audit(record))
        if (found.tape_files, found.full) == (record.tape_files, False):
            cartridge.record = record
            return found
        note = record.note
        if found.dead:
            dead = f"dead space in tape files {', '.join(map(str, found.dead))}"
            _log.info("%s: %s", record.barcode, dead)
            said = [part for part in settled(record.note).split("; ") if part and "dead space" not in part]
            note = "; ".join([dead, *said])
        self.adopt(found.adopted)
        self.keep(
            cartridge,
            record,
            state="full" if found.full and record.state == "appendable" else record.state,
            tape_files=found.tape_files,
            last_trailer=max([record.last_trailer, *(t.this.trailer for t in found.adopted)]),
            used_bytes=record.used_bytes + found.dead_bytes + sum(t.this.bytes for t in found.adopted),
            images=record.images
            + tuple(t.image for t in found.adopted if t.kind == "image" and t.image not in record.images),
            note=note,
        )
        return found

    def adopt(self, trailers: tuple[Trailer, ...]) -> None:
        """Remembers whole copies that the catalog may not have heard of."""
        for trailer in trailers:
            if trailer.final and trailer.kind == "image":
                self.adopted[trailer.image, trailer.epoch] = trailer

    def keep(
        self,
        cartridge: Cartridge,
        record: CartridgeRecord,
        *,
        written: bool = False,
        late: bool = False,
        **changes: object,
    ) -> None:
        """Records what is true of a cartridge now. ``written``: something has just been written to it; ``late``:
        its own end tells that to whoever looks, so that the catalog may be told a little later."""
        if written:
            changes["written"] = self._clock.now()
        cartridge.record = (self.watch.appended if late else self.watch.change)(record, **changes)

    def begin_writing(self, cartridge: Cartridge) -> None:
        """The intent before the first append of a mount: whoever comes after a crash looks at this
        cartridge's end."""
        if not is_being_written(cartridge.entry):
            note = cartridge.entry.note
            self.keep(cartridge, cartridge.entry, note=f"{WRITING}; {note}" if note else WRITING)

    def settle(self, cartridge: Cartridge) -> None:
        """A cartridge's end is what the catalog says: nobody has to look at it after a crash."""
        if is_being_written(cartridge.entry):
            self.keep(cartridge, cartridge.entry, note=settled(cartridge.entry.note))

    def _set_aside(
        self,
        barcode: str,
        record: CartridgeRecord | None,
        state: CartridgeState,
        note: str,
        *,
        worm: bool = False,
    ) -> None:
        if record is None:
            record = CartridgeRecord(
                barcode=barcode,
                destination=self.destination,
                pool=self.pool.name,
                state=state,
                at=self._clock.now(),
            )
        self.watch.change(record, state=state, note=note, worm=worm or record.worm)

    def recover(self, bay: Bay, barcode: str, cancel: Cancel) -> bool:
        """Looks at the end of a cartridge that a stopped process was writing; False while another process
        has it.

        Raises:
            DestinationError: the drive or changer failed.
        """
        record = self.watch.record_of(barcode)
        if record is None or not is_being_written(record) or record.state not in ("appendable", "full"):
            return True
        if self._bays.is_stuck(barcode):
            return False
        found = self._bays.bring_or_wait(bay, barcode, cancel)
        if found != "brought":
            return found == "proved"
        try:
            with self._judged(bay, barcode):
                cartridge = Cartridge(bay.drive, barcode)
                self._check(cartridge, record)
                self.audit(cartridge, record)
        except (WrongCartridge, MediumDamaged, WriteProtected) as error:
            state: CartridgeState = "foreign" if isinstance(error, WrongCartridge) else "full"
            self._set_aside(barcode, record, state, str(error))
            return True
        bay.cartridge = cartridge
        self.settle(cartridge)
        return True
