//! Sv39 page tables. They have three levels of 512 entries, and pages of 4 KiB, 2 MiB or 1 GiB.
//!
//! A [`PageTable`] owns its tables and, in the lower half, the frames that were passed to it; all
//! are freed with it. The entries of the upper half point to tables of the kernel's page table or
//! of the gate's page table, which are never dropped.

use core::ops::Range;

use super::frames::Frame;
use super::{DIRECT, OutOfMemory, PAGE, PhysAddr};

const ENTRIES: usize = 512;
/// Index of the first entry of the upper half.
const UPPER: usize = ENTRIES / 2;
/// End of the lower half's addresses.
pub(crate) const LOWER_END: usize = 1 << 38;

const VALID: u64 = 1 << 0;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXECUTE: u64 = 1 << 3;
const USER: u64 = 1 << 4;
const GLOBAL: u64 = 1 << 5;
/// Set from the start, for machines that do not set these bits.
const ACCESSED_DIRTY: u64 = 0b11 << 6;
/// Software bit: the frame is freed with the table.
const OWNED: u64 = 1 << 8;

/// Permissions of a page. No other combinations exist, so W^X holds by type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping(u64);

impl Mapping {
    /// Bit of pages that are in every table: those of the kernel, unless it is isolated.
    const KERNEL: u64 = if cfg!(feature = "isolated") {
        0
    } else {
        GLOBAL
    };
    pub(super) const KERNEL_TEXT: Mapping = Mapping(READ | EXECUTE | Self::KERNEL);
    pub(super) const KERNEL_CONSTANTS: Mapping = Mapping(READ | Self::KERNEL);
    pub(super) const KERNEL_DATA: Mapping = Mapping(READ | WRITE | Self::KERNEL);
    pub(crate) const USER_TEXT: Mapping = Mapping(USER | READ | EXECUTE);
    pub(crate) const USER_CONSTANTS: Mapping = Mapping(USER | READ);
    pub(crate) const USER_DATA: Mapping = Mapping(USER | READ | WRITE);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

#[derive(Clone, Copy)]
struct Entry(u64);

impl Entry {
    fn table(address: PhysAddr) -> Entry {
        Entry((address.get() as u64 >> 12) << 10 | VALID)
    }

    fn leaf(address: PhysAddr, bits: u64) -> Entry {
        Entry((address.get() as u64 >> 12) << 10 | bits | VALID | ACCESSED_DIRTY)
    }

    fn is_valid(self) -> bool {
        self.0 & VALID != 0
    }

    fn is_leaf(self) -> bool {
        self.0 & (READ | WRITE | EXECUTE) != 0
    }

    fn address(self) -> PhysAddr {
        PhysAddr::new(((self.0 >> 10) as usize & ((1 << 44) - 1)) << 12)
    }
}

#[repr(C, align(4096))]
struct Table([Entry; ENTRIES]);

/// Returns the index of the entry for an address in a table of a level (2, 1, 0).
fn index(address: usize, level: usize) -> usize {
    address >> (12 + 9 * level) & (ENTRIES - 1)
}

/// Returns the number of bytes that a leaf of a level covers.
fn span(level: usize) -> usize {
    PAGE << (9 * level)
}

/// A page of the lower half.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapped {
    pub(super) page: usize,
    pub(super) frame: PhysAddr,
    pub(super) mapping: Mapping,
    /// True if the frame is freed with the table.
    pub(super) is_owned: bool,
}

pub(crate) struct PageTable {
    root: Frame,
}

impl PageTable {
    pub(super) fn new() -> Result<PageTable, OutOfMemory> {
        let root = Frame::zeroed()?;
        Ok(PageTable { root })
    }

    /// Creates a page table with the upper half of `other` and an empty lower half.
    pub(super) fn with_upper(other: &'static PageTable) -> Result<PageTable, OutOfMemory> {
        let mut table = PageTable::new()?;
        let upper = &other.root_table().0[UPPER..];
        table.root_table_mut().0[UPPER..].copy_from_slice(upper);
        Ok(table)
    }

    pub(crate) fn satp(&self) -> usize {
        8 << 60 | self.root.address().get() >> 12
    }

    fn root_table(&self) -> &Table {
        // SAFETY: this value owns the root, a frame that contains a table; the borrow of `self`
        // excludes writes.
        unsafe { &*(self.root.address().direct() as *const Table) }
    }

    fn root_table_mut(&mut self) -> &mut Table {
        // SAFETY: as above, and `self` is borrowed mutably. The hardware also reads tables; each
        // entry is written as a whole.
        unsafe { &mut *(self.root.address().direct() as *mut Table) }
    }

    /// Returns the entry for an address at a level; creates missing tables on the way.
    fn entry(&mut self, address: usize, level: usize) -> Result<&mut Entry, OutOfMemory> {
        let mut table = self.root_table_mut();
        for upper_level in (level + 1..=2).rev() {
            let entry = &mut table.0[index(address, upper_level)];
            if !entry.is_valid() {
                *entry = Entry::table(Frame::zeroed()?.into_address());
            }
            assert!(!entry.is_leaf(), "a large page is in the way");
            // SAFETY: a valid entry that is not a leaf points to a table in a frame that this value
            // owns; tables form a tree, and its root is borrowed mutably.
            table = unsafe { &mut *(entry.address().direct() as *mut Table) };
        }
        Ok(&mut table.0[index(address, level)])
    }

    /// Maps physical memory into the direct map with the largest pages that fit.
    pub(super) fn map_direct(
        &mut self,
        memory: Range<usize>,
        mapping: Mapping,
    ) -> Result<(), OutOfMemory> {
        let mut at = memory.start;
        while at < memory.end {
            let fits =
                |level: &usize| at.is_multiple_of(span(*level)) && memory.end - at >= span(*level);
            let level = [2, 1].into_iter().find(fits).unwrap_or(0);
            *self.entry(DIRECT + at, level)? = Entry::leaf(PhysAddr::new(at), mapping.0);
            at += span(level);
        }
        Ok(())
    }

    /// Maps an owned frame at an unmapped page of the lower half; the frame is freed with the page
    /// table.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the frame is freed.
    pub(super) fn map_owned(
        &mut self,
        page: usize,
        frame: Frame,
        mapping: Mapping,
    ) -> Result<(), OutOfMemory> {
        let entry = self.lower(page)?;
        *entry = Entry::leaf(frame.into_address(), mapping.0 | OWNED);
        Ok(())
    }

    /// Maps a frame whose owner outlives the table.
    pub(super) fn map_shared(
        &mut self,
        page: usize,
        frame: PhysAddr,
        mapping: Mapping,
    ) -> Result<(), OutOfMemory> {
        *self.lower(page)? = Entry::leaf(frame, mapping.0);
        Ok(())
    }

    /// Returns the first mapped page of the lower half at or above an address. O(tables).
    pub(super) fn next_page(&self, from: usize) -> Option<Mapped> {
        let mut page = from;
        while page < LOWER_END {
            let mut table = self.root_table();
            let mut level = 2;
            loop {
                let entry = table.0[index(page, level)];
                if !entry.is_valid() {
                    page = (page / span(level) + 1) * span(level);
                    break;
                }
                if level == 0 {
                    return Some(Mapped {
                        page,
                        frame: entry.address(),
                        mapping: Mapping(entry.0 & (USER | READ | WRITE | EXECUTE)),
                        is_owned: entry.0 & OWNED != 0,
                    });
                }
                assert!(!entry.is_leaf(), "programs have no large pages");
                // SAFETY: as in `entry`, with a shared borrow.
                table = unsafe { &*(entry.address().direct() as *const Table) };
                level -= 1;
            }
        }
        None
    }

    /// Returns the number of bytes that the upper half maps.
    #[cfg(all(feature = "selftest", feature = "isolated"))]
    pub(crate) fn upper_bytes(&self) -> usize {
        let upper = &self.root_table().0[UPPER..];
        // SAFETY: `self` is borrowed, so its tables exist.
        upper.iter().map(|entry| unsafe { bytes(*entry, 2) }).sum()
    }

    fn lower(&mut self, page: usize) -> Result<&mut Entry, OutOfMemory> {
        assert!(page < LOWER_END && page.is_multiple_of(PAGE));
        let entry = self.entry(page, 0)?;
        assert!(!entry.is_valid(), "a page is mapped twice");
        Ok(entry)
    }

    /// Returns the physical address of a page of the lower half if a program has this access to it;
    /// with `None`, if the program has any access.
    pub(super) fn translate(&self, page: usize, access: Option<Access>) -> Option<PhysAddr> {
        if page >= LOWER_END {
            return None;
        }
        let mut table = self.root_table();
        for level in (1..=2).rev() {
            let entry = table.0[index(page, level)];
            if !entry.is_valid() || entry.is_leaf() {
                return None;
            }
            // SAFETY: as in `entry`, with a shared borrow.
            table = unsafe { &*(entry.address().direct() as *const Table) };
        }
        let entry = table.0[index(page, 0)];
        let wanted = match access {
            None => 0,
            Some(Access::Read) => READ,
            Some(Access::Write) => WRITE,
        } | VALID
            | USER;
        (entry.0 & wanted == wanted).then(|| entry.address())
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        for entry in &mut self.root_table_mut().0[..UPPER] {
            // SAFETY: this value owns the lower half, and no hart uses the page table any more.
            unsafe { drop_entry(*entry, 2) };
        }
    }
}

/// Returns the number of bytes that an entry maps.
///
/// # Safety
/// The entry belongs to a table of this level that exists.
#[cfg(all(feature = "selftest", feature = "isolated"))]
unsafe fn bytes(entry: Entry, level: usize) -> usize {
    if !entry.is_valid() {
        return 0;
    }
    if entry.is_leaf() {
        return span(level);
    }
    // SAFETY: the entry points to a table of the level below.
    let table = unsafe { &*(entry.address().direct() as *const Table) };
    // SAFETY: the entries belong to that table.
    let bytes = |entry: &Entry| unsafe { bytes(*entry, level - 1) };
    table.0.iter().map(bytes).sum()
}

/// Frees the frame or table that an entry owns.
///
/// # Safety
/// The entry is no longer in use, and belongs to a table of this level.
unsafe fn drop_entry(entry: Entry, level: usize) {
    if !entry.is_valid() {
        return;
    }
    if !entry.is_leaf() {
        debug_assert!(level > 0);
        // SAFETY: the entry points to a table that no other entry points to.
        let table = unsafe { &*(entry.address().direct() as *const Table) };
        for entry in &table.0 {
            // SAFETY: the entries belong to that table, which is no longer in use.
            unsafe { drop_entry(*entry, level - 1) };
        }
    } else if entry.0 & OWNED == 0 {
        return;
    }
    // SAFETY: the address of a table or of an owned leaf came from `into_address` when the entry
    // was created, and is converted back only here.
    drop(unsafe { Frame::from_address(entry.address()) });
}
