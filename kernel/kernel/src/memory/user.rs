//! Checks and copies user memory, to which the kernel has no other access.
//!
//! A [`UserSlice`] is a range that a program claims to own. At the moment of use, and under the
//! lock of the page table, each page is checked for the intended access and copied through the
//! kernel's direct mapping. The kernel never dereferences a user's address, so no address makes it
//! fault.

use core::ptr::{read_volatile, write_volatile};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;

use os_abi::Error;

use super::PAGE;
use super::pagetable::{Access, LOWER_END};
use super::space::AddressSpace;

/// An unchecked range of a program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UserSlice {
    start: usize,
    len: usize,
}

impl UserSlice {
    /// Returns the range, if it is in the lower half.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub(crate) fn new(start: usize, len: usize) -> Result<UserSlice, Error> {
        match start.checked_add(len) {
            Some(end) if end <= LOWER_END => Ok(UserSlice { start, len }),
            _ => Err(Error::BadAddress),
        }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Returns the part that begins at `offset` and has at most `len` bytes.
    pub(crate) fn part(self, offset: usize, len: usize) -> UserSlice {
        let offset = offset.min(self.len);
        UserSlice {
            start: self.start + offset,
            len: len.min(self.len - offset),
        }
    }

    /// Returns the pieces of the slice, each within a page, as page, offset in the page and length.
    fn pieces(self) -> impl Iterator<Item = (usize, usize, usize)> {
        let mut rest = self;
        core::iter::from_fn(move || {
            let (page, offset) = (rest.start / PAGE * PAGE, rest.start % PAGE);
            let len = rest.len.min(PAGE - offset);
            rest = rest.part(len, usize::MAX);
            (len > 0).then_some((page, offset, len))
        })
    }
}

impl AddressSpace {
    /// Checks that the program has this access to the whole range. The program cannot lose the
    /// access later, because pages are never unmapped; only whole spaces are dropped.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub(crate) fn check(&self, slice: UserSlice, access: Access) -> Result<(), Error> {
        let table = self.table.lock();
        let all = slice
            .pieces()
            .all(|(page, _, _)| table.translate(page, Some(access)).is_some());
        if all { Ok(()) } else { Err(Error::BadAddress) }
    }

    /// Reads the 32-bit word at an address atomically.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if the address is unaligned or not readable by the program.
    pub(crate) fn load_word(&self, address: usize) -> Result<u32, Error> {
        self.with_word(address, Access::Read, |word| word.load(SeqCst))
    }

    /// Writes the 32-bit word at an address atomically.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if the address is unaligned or not writable by the program.
    pub(crate) fn store_word(&self, address: usize, value: u32) -> Result<(), Error> {
        self.with_word(address, Access::Write, |word| word.store(value, SeqCst))
    }

    /// Checks that the program may write the 32-bit word at an address.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if the address is unaligned or not writable by the program.
    pub(crate) fn check_word(&self, address: usize) -> Result<(), Error> {
        self.with_word(address, Access::Write, |_| ())
    }

    /// Replaces the 32-bit word at an address if it is `old`, or else returns its value.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if the address is unaligned or not writable by the program.
    pub(crate) fn exchange_word(
        &self,
        address: usize,
        old: u32,
        new: u32,
    ) -> Result<Result<(), u32>, Error> {
        self.with_word(address, Access::Write, |word| {
            word.compare_exchange(old, new, SeqCst, SeqCst).map(|_| ())
        })
    }

    fn with_word<R>(
        &self,
        address: usize,
        access: Access,
        f: impl FnOnce(&AtomicU32) -> R,
    ) -> Result<R, Error> {
        let table = self.table.lock();
        if !address.is_multiple_of(4) {
            return Err(Error::BadAddress);
        }
        let (page, offset) = (address / PAGE * PAGE, address % PAGE);
        let frame = table
            .translate(page, Some(access))
            .ok_or(Error::BadAddress)?;
        // SAFETY: the word is within a frame of the program, which exists while its table is
        // locked; it is aligned; programs access it concurrently, which atomics permit.
        let word = unsafe { &*((frame.direct() + offset) as *const AtomicU32) };
        Ok(f(word))
    }

    /// Copies from user memory.
    ///
    /// # Errors
    /// [`Error::BadAddress`]; a part may have been copied.
    pub(crate) fn read(&self, from: UserSlice, to: &mut [u8]) -> Result<(), Error> {
        let from = from.part(0, to.len());
        if from.len < to.len() {
            return Err(Error::BadAddress);
        }
        let mut done = 0;
        for (page, offset, len) in from.pieces() {
            let table = self.table.lock();
            let frame = table
                .translate(page, Some(Access::Read))
                .ok_or(Error::BadAddress)?;
            // SAFETY: see `copy`; `frame` belongs to the program while its table is locked, and
            // `len` bytes stay within the frame; `to` has at least `len` more bytes.
            unsafe {
                copy(
                    (frame.direct() + offset) as *const u8,
                    to[done..done + len].as_mut_ptr(),
                    len,
                );
            }
            done += len;
        }
        Ok(())
    }

    /// Copies to user memory.
    ///
    /// # Errors
    /// [`Error::BadAddress`]; a part may have been copied.
    pub(crate) fn write(&self, to: UserSlice, from: &[u8]) -> Result<(), Error> {
        let to = to.part(0, from.len());
        if to.len < from.len() {
            return Err(Error::BadAddress);
        }
        let mut done = 0;
        for (page, offset, len) in to.pieces() {
            let table = self.table.lock();
            let frame = table
                .translate(page, Some(Access::Write))
                .ok_or(Error::BadAddress)?;
            // SAFETY: as in `read`; the program may write the page.
            unsafe {
                copy(
                    from[done..done + len].as_ptr(),
                    (frame.direct() + offset) as *mut u8,
                    len,
                );
            }
            done += len;
        }
        Ok(())
    }
}

/// Size of a word in bytes. All of a range except its ends is copied in words.
const WORD: usize = 8;

/// Copies between kernel memory and a frame of a program.
///
/// Other harts may run the program meanwhile and write the same bytes; the result is then any
/// mixture. Such a frame contains no Rust object, and the only references into it are those of
/// `with_word` to atomic words. Therefore the accesses are volatile, like accesses to a device.
///
/// # Safety
/// `from` and `to` are valid for `len` bytes and do not overlap.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let bytes = |range: core::ops::Range<usize>| {
        for n in range {
            // SAFETY: `n` is below `len`, and the caller guarantees `len` bytes in both ranges.
            unsafe { write_volatile(to.add(n), read_volatile(from.add(n))) };
        }
    };
    // The head ends where `to` is aligned; from there on `from` has a constant misalignment.
    let head = (to.addr().wrapping_neg() % WORD).min(len);
    bytes(0..head);
    // SAFETY: `head` is at most `len`, so both pointers are within the ranges or at their ends.
    let (source, target) = unsafe { (from.add(head), to.add(head).cast::<u64>()) };
    let (left, misalignment) = (len - head, source.addr() % WORD);
    let words = match misalignment {
        0 => {
            let source = source.cast::<u64>();
            for n in 0..left / WORD {
                // SAFETY: the words are within the ranges, and both pointers are aligned.
                unsafe { write_volatile(target.add(n), read_volatile(source.add(n))) };
            }
            left / WORD
        }
        // Each word of `to` consists of the end of a word of `from` and the beginning of the next.
        _ if left >= 2 * WORD => {
            let bytes_to_alignment = WORD - misalignment;
            // SAFETY: `n` is below `bytes_to_alignment`, and at least two words are left.
            let byte = |n| unsafe { read_volatile(source.add(n)) };
            let mut low =
                (0..bytes_to_alignment).fold(0, |low, n| low | u64::from(byte(n)) << (8 * n));
            let words = (left - bytes_to_alignment) / WORD;
            // SAFETY: these bytes are within the range, and the result is aligned.
            let source = unsafe { source.add(bytes_to_alignment) }.cast::<u64>();
            for n in 0..words {
                // SAFETY: the bytes before the alignment and `words` words are within the ranges,
                // and both pointers are aligned.
                unsafe {
                    let next = u64::from_le(read_volatile(source.add(n)));
                    let word = low | next << (8 * bytes_to_alignment);
                    write_volatile(target.add(n), word.to_le());
                    low = next >> (8 * misalignment);
                }
            }
            words
        }
        _ => 0,
    };
    bytes(head + WORD * words..len);
}
