//! The vDSO: the image of the scheduler that is mapped into every process.
//!
//! The kernel reads the image from the archive once, while booting: it loads the image for the
//! address that it has in every process, relocates it, and looks its functions up by name. So
//! binding costs a program nothing, a stripped program can bind, and an image that lacks a function
//! is refused before any program starts. Processes share the pages that are not written; the other
//! pages are copied for each process.

use alloc::vec::Vec;
use core::fmt;

use os_abi::layout;
use os_abi::shared::VDSO_NAMES;

use crate::arch::lock::Once;
use crate::elf::{Elf, Segment};
use crate::memory::frames::Frame;
use crate::memory::pagetable::Mapping;
use crate::memory::space::AddressSpace;
use crate::memory::{OutOfMemory, PAGE};

/// Name of the image in the archive.
pub(crate) const NAME: &str = "vdso";
/// Maximum size of the image in memory, in bytes.
const MAX_SIZE: usize = 1 << 20;

// Tags of the dynamic section, and the only permitted kind of relocation.
const HASH: u64 = 4;
const STRINGS: u64 = 5;
const SYMBOLS: u64 = 6;
const RELOCATIONS: u64 = 7;
const RELOCATIONS_SIZE: u64 = 8;
const CALLS_SIZE: u64 = 2;
const RELATIVE: u64 = 3;

struct Page {
    offset: usize,
    /// The frame and mapping that all processes share; `None` if each process has a copy.
    shared: Option<(Frame, Mapping)>,
}

struct Vdso {
    bytes: Vec<u8>,
    pages: Vec<Page>,
    functions: [u64; VDSO_NAMES.len()],
}

static VDSO: Once<Vdso> = Once::new();

pub(crate) enum VdsoError {
    /// The image is not a shared object that this kernel can load.
    Malformed(&'static str),
    /// The image lacks this function, because kernel and image were built from different sources.
    Missing(&'static str),
    OutOfMemory,
}

impl fmt::Display for VdsoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VdsoError::Malformed(why) => write!(f, "the vDSO is malformed: {why}"),
            VdsoError::Missing(name) => write!(f, "the vDSO lacks the function {name}"),
            VdsoError::OutOfMemory => f.write_str("no memory for the vDSO"),
        }
    }
}

pub(crate) fn init(file: &[u8]) -> Result<(), VdsoError> {
    let elf = Elf::object(file).map_err(|_| VdsoError::Malformed("not a RISC-V shared object"))?;
    let mut segments = Vec::new();
    let mut bytes = Vec::new();
    for segment in elf.segments() {
        let segment = segment.map_err(|_| VdsoError::Malformed("a segment is not in the file"))?;
        let end = segment.start + segment.len;
        if end > MAX_SIZE || (segment.is_writable && segment.is_executable) {
            return Err(VdsoError::Malformed(
                "a segment is too large, or writable code",
            ));
        }
        let len = bytes.len().max(end.next_multiple_of(PAGE));
        bytes.resize(len, 0);
        bytes[segment.start..segment.start + segment.bytes.len()].copy_from_slice(segment.bytes);
        segments.push(segment);
    }
    let tables = Tables::new(&bytes, elf.dynamic());
    let tables = tables.ok_or(VdsoError::Malformed(
        "its dynamic section is incomplete, or requires symbols to be bound",
    ))?;
    let mut functions = [0; VDSO_NAMES.len()];
    for (address, name) in functions.iter_mut().zip(VDSO_NAMES) {
        let offset = tables.find(&bytes, name).ok_or(VdsoError::Missing(name))?;
        *address = (layout::VDSO + offset) as u64;
    }
    tables.relocate(&mut bytes, &segments)?;
    let pages = pages(&bytes, &segments)?;
    VDSO.set(Vdso {
        bytes,
        pages,
        functions,
    });
    Ok(())
}

fn double(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
}

struct Tables {
    symbols: usize,
    symbol_count: usize,
    strings: usize,
    relocations: usize,
    relocations_size: usize,
}

impl Tables {
    fn new(bytes: &[u8], dynamic: Option<(usize, usize)>) -> Option<Tables> {
        let (start, len) = dynamic?;
        let value = |wanted: u64| {
            (0..len / 16).find_map(|n| {
                let at = start.checked_add(16 * n)?;
                let value = double(bytes, at + 8)?;
                (double(bytes, at)? == wanted).then_some(value as usize)
            })
        };
        // If an exported function calls another by its name, the call goes through a table that the
        // kernel would have to fill in.
        if value(CALLS_SIZE).is_some_and(|size| size != 0) {
            return None;
        }
        Some(Tables {
            symbols: value(SYMBOLS)?,
            // The second word of the hash table counts the symbols.
            symbol_count: word(bytes, value(HASH)?.checked_add(4)?)?,
            strings: value(STRINGS)?,
            relocations: value(RELOCATIONS).unwrap_or(0),
            relocations_size: value(RELOCATIONS_SIZE).unwrap_or(0),
        })
    }

    /// Returns the offset of a defined function.
    fn find(&self, bytes: &[u8], name: &str) -> Option<usize> {
        (0..self.symbol_count).find_map(|n| {
            let symbol = self.symbols.checked_add(24 * n)?;
            let text = self.strings.checked_add(word(bytes, symbol)?)?;
            let rest = bytes.get(text..)?.strip_prefix(name.as_bytes())?;
            let is_defined = bytes.get(symbol + 6..symbol + 8)? != [0, 0];
            let value = double(bytes, symbol + 8)? as usize;
            (is_defined && rest.first() == Some(&0) && value < bytes.len()).then_some(value)
        })
    }

    /// Applies the relocations for the address at which the image is mapped.
    fn relocate(&self, bytes: &mut [u8], segments: &[Segment<'_>]) -> Result<(), VdsoError> {
        for n in 0..self.relocations_size / 24 {
            let entry = self.relocations.saturating_add(24 * n);
            let fields = [0, 8, 16].map(|field| double(bytes, entry.saturating_add(field)));
            let [Some(target), Some(RELATIVE), Some(addend)] = fields else {
                return Err(VdsoError::Malformed("a relocation is not relative"));
            };
            let target = target as usize;
            let is_writable_data = |segment: &Segment<'_>| {
                segment.is_writable
                    && target >= segment.start
                    && target.saturating_add(8) <= segment.start + segment.len
            };
            if !segments.iter().any(is_writable_data) {
                return Err(VdsoError::Malformed("a relocation is not in data"));
            }
            let address = (layout::VDSO as u64).wrapping_add(addend);
            bytes[target..target + 8].copy_from_slice(&address.to_le_bytes());
        }
        Ok(())
    }
}

fn pages(bytes: &[u8], segments: &[Segment<'_>]) -> Result<Vec<Page>, VdsoError> {
    let mut pages = Vec::new();
    for offset in (0..bytes.len()).step_by(PAGE) {
        let covers = |segment: &&Segment<'_>| {
            segment.start < offset + PAGE && segment.start + segment.len > offset
        };
        let is_executable = segments
            .iter()
            .filter(covers)
            .any(|segment| segment.is_executable);
        let is_writable = segments
            .iter()
            .filter(covers)
            .any(|segment| segment.is_writable);
        let shared = match (is_executable, is_writable) {
            (true, true) => return Err(VdsoError::Malformed("a page is code and data")),
            (_, true) => None,
            (is_executable, false) => {
                let contents = &bytes[offset..offset + PAGE];
                let frame = Frame::with(contents).map_err(|_| VdsoError::OutOfMemory)?;
                let text = Mapping::USER_TEXT;
                Some((
                    frame,
                    if is_executable {
                        text
                    } else {
                        Mapping::USER_CONSTANTS
                    },
                ))
            }
        };
        pages.push(Page { offset, shared });
    }
    Ok(pages)
}

/// Maps the image into a new space, and returns the addresses of its functions; zeroes if the
/// machine was booted without an image.
pub(crate) fn map(space: &AddressSpace) -> Result<[u64; VDSO_NAMES.len()], OutOfMemory> {
    let Some(vdso) = VDSO.try_get() else {
        return Ok([0; VDSO_NAMES.len()]);
    };
    for page in &vdso.pages {
        let address = layout::VDSO + page.offset;
        match &page.shared {
            Some((frame, mapping)) => space.map_static(address, frame, *mapping)?,
            None => {
                let bytes = &vdso.bytes[page.offset..page.offset + PAGE];
                space.map_page(address, bytes, Mapping::USER_DATA)?;
            }
        }
    }
    Ok(vdso.functions)
}
