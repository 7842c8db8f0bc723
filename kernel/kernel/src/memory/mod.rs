//! Manages the memory: frames, the kernel heap, page tables, and address spaces.
//!
//! ```text
//!  0xffff_ffff_ffff_ffff ┐
//!                        │ nothing
//!  DIRECT + end of RAM   ┤
//!                        │ all RAM, at its physical address + DIRECT: readable and
//!                        │ writable, but the image in it is W^X: text RX,
//!                        │ constants R, data RW, an unmapped page below each stack
//!  DIRECT + 2 GiB        ┤
//!                        │ devices, readable and writable
//!  DIRECT                ┘ 0xffff_ffc0_0000_0000
//!            (not addressable)
//!  0x40_0000_0000        ┐
//!                        │ user programs, see os_abi::layout
//!  0                     ┘
//! ```
//!
//! The upper half is never accessible to user mode. It is the same in every address space, or in an
//! isolated kernel empty except for a gate (`isolated.rs`). The kernel is mapped once, so no memory
//! is writable under one address and executable under another.
//!
//! This module, `arch` and the virtio drivers are the only places with `unsafe`. User memory is not
//! trusted: see [`user`].

pub(crate) mod dma;
pub(crate) mod frames;
pub(crate) mod heap;
#[cfg(feature = "isolated")]
pub(crate) mod isolated;
#[cfg(not(feature = "isolated"))]
mod mapped;
pub(crate) mod pagetable;
pub(crate) mod shared;
pub(crate) mod space;
pub(crate) mod user;

use core::ops::Range;

use crate::arch::lock::Once;
use crate::arch::{boot, csr};
use crate::machine::Machine;
#[cfg(feature = "isolated")]
use isolated as isolation;
#[cfg(not(feature = "isolated"))]
use mapped as isolation;
use pagetable::{Mapping, PageTable};

/// Size of a page in bytes.
pub(crate) const PAGE: usize = 4096;
/// Virtual address of physical address 0 in the kernel.
pub(crate) const DIRECT: usize = 0xffff_ffc0_0000_0000;
/// Devices are below this physical address, memory is above it.
pub(crate) const DEVICE_END: usize = 0x8000_0000;
/// End of the physical memory that the kernel can use.
const MEMORY_END: usize = DEVICE_END + (64 << 30);

/// Error of an allocation: there is no memory for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PhysAddr(usize);

impl PhysAddr {
    pub(crate) const fn new(address: usize) -> PhysAddr {
        PhysAddr(address)
    }

    /// Returns the physical address of an object in the image or its stacks.
    pub(crate) fn of_image(address: usize) -> PhysAddr {
        PhysAddr(address.wrapping_sub(DIRECT))
    }

    pub(crate) fn get(self) -> usize {
        self.0
    }

    /// Returns the virtual address in the kernel.
    pub(crate) fn direct(self) -> usize {
        self.0.wrapping_add(DIRECT)
    }
}

unsafe extern "C" {
    static __image_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __image_end: u8;
}

fn image() -> Range<usize> {
    PhysAddr::of_image(&raw const __image_start as usize).get()
        ..PhysAddr::of_image(&raw const __image_end as usize).get()
}

/// Returns bytes that the firmware or QEMU has left in memory for ever.
///
/// Returns `None` if a part of them is not mapped. Before [`init`] only the first GiB of memory is
/// mapped, afterwards all memory is.
pub(crate) fn boot_bytes(start: PhysAddr, len: usize) -> Option<&'static [u8]> {
    let first_gib = DEVICE_END..DEVICE_END + (1 << 30);
    let mapped = KERNEL_TABLE.try_get().map_or(first_gib, |_| ram_range());
    let end = start.get().checked_add(len)?;
    if start.get() < mapped.start || end > mapped.end || end > isize::MAX as usize {
        return None;
    }
    // SAFETY: the range is mapped, and `init` keeps it out of the frame allocator, so it is never
    // written.
    Some(unsafe { core::slice::from_raw_parts(start.direct() as *const u8, len) })
}

static KERNEL_TABLE: Once<PageTable> = Once::new();
static RAM: Once<Range<usize>> = Once::new();

fn ram_range() -> Range<usize> {
    RAM.get().clone()
}

/// Number of frames that requests of programs never use: 4 MiB.
pub(crate) const KERNEL_RESERVE: usize = 1024;

/// Returns whether the kernel must keep the rest of the memory for itself. While this is so, every
/// request of a program that needs kernel memory is refused.
pub(crate) fn is_short() -> bool {
    frames::free_frames() < KERNEL_RESERVE
}

/// Creates the frame allocator, and creates and installs the page table of the kernel.
///
/// # Panics
/// If the memory does not suffice to boot.
pub(crate) fn init(machine: &Machine, device_tree: Range<usize>) {
    let ram = machine.memory.start..machine.memory.end.min(MEMORY_END);
    let image = image();
    assert!(
        ram.start >= DEVICE_END && ram.start <= image.start && image.end < ram.end,
        "the kernel is not in the memory that the device tree describes"
    );
    let mut used = [
        // The firmware is below the kernel.
        ram.start..image.end,
        device_tree,
        machine.archive.clone().unwrap_or(0..0),
    ];
    // The table that maps the memory beyond the first GiB is allocated in the first GiB.
    let first = ram.start..ram.end.min(DEVICE_END + (1 << 30));
    frames::init(ram.clone(), first.clone(), &mut used);
    RAM.set(ram.clone());
    let table = kernel_table(&ram).expect("memory for the kernel's page table");
    // SAFETY: the table maps all that the kernel uses of the boot table's mappings: image, stacks,
    // memory, devices; and it is never dropped.
    unsafe { csr::set_satp(table.satp()) };
    KERNEL_TABLE.set(table);
    #[cfg(feature = "isolated")]
    isolated::init().expect("memory for the gate's page table");
    shared::init().expect("memory for the global bitmap");
    if first.end < ram.end {
        frames::add(first.end..ram.end, &mut used);
    }
}

/// Installs the kernel's page table on a hart that has another table.
pub(crate) fn install_kernel_table() {
    // SAFETY: the table is never dropped, and maps the kernel.
    unsafe { csr::set_satp(KERNEL_TABLE.get().satp()) };
}

fn kernel_table(ram: &Range<usize>) -> Result<PageTable, OutOfMemory> {
    let mut table = PageTable::new()?;
    let image = image();
    let text = PhysAddr::of_image(&raw const __text_end as usize).get();
    let rodata = PhysAddr::of_image(&raw const __rodata_end as usize).get();
    let stacks = PhysAddr::of_image(boot::stacks()).get();
    table.map_direct(0..DEVICE_END, Mapping::KERNEL_DATA)?;
    table.map_direct(ram.start..image.start, Mapping::KERNEL_DATA)?;
    table.map_direct(image.start..text, Mapping::KERNEL_TEXT)?;
    table.map_direct(text..rodata, Mapping::KERNEL_CONSTANTS)?;
    table.map_direct(rodata..stacks, Mapping::KERNEL_DATA)?;
    for stack in (stacks..image.end).step_by(boot::STACK) {
        table.map_direct(stack + PAGE..stack + boot::STACK, Mapping::KERNEL_DATA)?;
    }
    table.map_direct(image.end..ram.end, Mapping::KERNEL_DATA)?;
    Ok(table)
}

/// Writes to the kernel's own code, which must end in a panic.
#[cfg(feature = "selftest")]
pub(crate) fn write_to_text() {
    let text = (&raw const __image_start).cast_mut();
    // SAFETY: the write is unsound, and must trap; if it succeeds, the test has failed.
    unsafe { text.write_volatile(0) };
}
