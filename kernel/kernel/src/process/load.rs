//! Creates the address space of a program from its ELF file.

use alloc::boxed::Box;
use alloc::sync::Arc;

use os_abi::{Error, ProcessInfo, layout};
use upshift_core::Level;

use super::Share;
use crate::arch::trap::UserContext;
use crate::elf::{Elf, Segment};
use crate::memory::PAGE;
use crate::memory::pagetable::Mapping;
use crate::memory::space::AddressSpace;
use crate::{chaos, clock, settings, vdso};

/// Loads a program; returns its space and its initial context.
///
/// # Errors
/// [`Error::BadProgram`], [`Error::OutOfMemory`].
pub(super) fn load(
    program: &[u8],
    process: u64,
    level: Level,
    argument: &[u8],
    share: &Arc<Share>,
) -> Result<(Arc<AddressSpace>, UserContext), Error> {
    let out_of_memory = |_| Error::OutOfMemory;
    let elf = Elf::new(program)?;
    let space = AddressSpace::new(share).map_err(out_of_memory)?;
    for segment in elf.segments() {
        map_segment(&space, segment?)?;
    }
    let stack = layout::STACK_TOP - settings::first_stack()..layout::STACK_TOP;
    for page in stack.step_by(PAGE) {
        if chaos::is_out_of_memory(64) {
            return Err(Error::OutOfMemory);
        }
        space
            .map_page(page, &[], Mapping::USER_DATA)
            .map_err(out_of_memory)?;
    }
    let functions = vdso::map(&space).map_err(out_of_memory)?;
    let info = info_page(process, level, &functions, argument);
    space
        .map_page(layout::INFO, &info[..], Mapping::USER_CONSTANTS)
        .map_err(out_of_memory)?;
    let context = UserContext::new(elf.entry, layout::STACK_TOP);
    Ok((Arc::new(space), context))
}

fn map_segment(space: &AddressSpace, segment: Segment<'_>) -> Result<(), Error> {
    let end = segment.start + segment.len;
    let is_in_image = segment.start >= layout::IMAGE && end <= layout::IMAGE_END;
    // W^X, and no page belongs to two segments.
    let is_sound =
        segment.start.is_multiple_of(PAGE) && !(segment.is_writable && segment.is_executable);
    if !is_in_image || !is_sound {
        return Err(Error::BadProgram);
    }
    let mapping = match (segment.is_executable, segment.is_writable) {
        (true, _) => Mapping::USER_TEXT,
        (false, true) => Mapping::USER_DATA,
        (false, false) => Mapping::USER_CONSTANTS,
    };
    let mut chunks = segment.bytes.chunks(PAGE);
    for page in (segment.start..end).step_by(PAGE) {
        if space.is_mapped(page) {
            return Err(Error::BadProgram);
        }
        let bytes = chunks.next().unwrap_or(&[]);
        space
            .map_page(page, bytes, mapping)
            .map_err(|_| Error::OutOfMemory)?;
    }
    Ok(())
}

/// Builds the info page of a program, a [`ProcessInfo`], word by word.
fn info_page(
    process: u64,
    level: Level,
    vdso: &[u64],
    argument: &[u8],
) -> Box<[u8; size_of::<ProcessInfo>()]> {
    /// Length of the words before the argument, in bytes.
    const WORDS: usize = core::mem::offset_of!(ProcessInfo, argument);
    let mut page = Box::new([0; size_of::<ProcessInfo>()]);
    let level = u64::from(level.get());
    let first_words = [os_abi::VERSION, process, level, clock::ticks_per_second()];
    let last_words = [argument.len() as u64];
    let words = first_words.iter().chain(vdso).chain(&last_words);
    for (bytes, word) in page.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    page[WORDS..WORDS + argument.len()].copy_from_slice(argument);
    page
}
