//! Parses ELF files to find the segments to load and the entry point.
//!
//! The parser is safe for any bytes: the result is either an error, or segments whose file part is
//! within the file and whose memory part does not wrap.

use os_abi::Error;

const PROGRAM_HEADER: usize = 56;
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const EXECUTABLE: u16 = 2;
const SHARED_OBJECT: u16 = 3;
const RISCV: u16 = 243;

/// An ELF file for this machine.
#[derive(Clone, Copy)]
pub(crate) struct Elf<'a> {
    bytes: &'a [u8],
    pub(crate) entry: usize,
    /// Offset of the program headers in the file.
    headers: usize,
    /// Number of program headers.
    count: usize,
}

/// A part of the program that is loaded into memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) start: usize,
    /// First bytes of the segment; the remaining bytes are zero.
    pub(crate) bytes: &'a [u8],
    /// Length of the segment in memory, in bytes.
    pub(crate) len: usize,
    pub(crate) is_executable: bool,
    pub(crate) is_writable: bool,
}

/// Returns the `N` bytes at an offset.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn double(bytes: &[u8], at: usize) -> Option<usize> {
    array(bytes, at).map(|bytes| u64::from_le_bytes(bytes) as usize)
}

impl<'a> Elf<'a> {
    /// Parses the header of a program.
    ///
    /// # Errors
    /// [`Error::BadProgram`] if the file is not a statically linked RISC-V program.
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Elf<'a>, Error> {
        Elf::parse(bytes, EXECUTABLE).ok_or(Error::BadProgram)
    }

    /// Parses the header of a shared object.
    ///
    /// # Errors
    /// [`Error::BadProgram`] if the file is not a shared object for RISC-V.
    pub(crate) fn object(bytes: &'a [u8]) -> Result<Elf<'a>, Error> {
        Elf::parse(bytes, SHARED_OBJECT).ok_or(Error::BadProgram)
    }

    fn parse(bytes: &'a [u8], kind: u16) -> Option<Elf<'a>> {
        // 64 bits, little endian, version 1.
        let is_supported = bytes.starts_with(b"\x7fELF\x02\x01\x01")
            && half(bytes, 16)? == kind
            && half(bytes, 18)? == RISCV
            && usize::from(half(bytes, 54)?) == PROGRAM_HEADER;
        is_supported.then_some(Elf {
            bytes,
            entry: double(bytes, 24)?,
            headers: double(bytes, 32)?,
            count: usize::from(half(bytes, 56)?),
        })
    }

    pub(crate) fn segments(self) -> impl Iterator<Item = Result<Segment<'a>, Error>> {
        (0..self.count).filter_map(move |n| match self.segment(n) {
            None => Some(Err(Error::BadProgram)),
            Some(None) => None,
            Some(Some(segment)) => Some(Ok(segment)),
        })
    }

    /// Returns the address and the size of the dynamic section, if there is one.
    pub(crate) fn dynamic(self) -> Option<(usize, usize)> {
        (0..self.count).find_map(|n| {
            let header = self.header(n)?;
            let is_dynamic = word(header, 0)? == DYNAMIC;
            is_dynamic.then_some((double(header, 16)?, double(header, 40)?))
        })
    }

    fn header(self, n: usize) -> Option<&'a [u8]> {
        let at = self.headers.checked_add(n * PROGRAM_HEADER)?;
        self.bytes.get(at..at.checked_add(PROGRAM_HEADER)?)
    }

    fn segment(self, n: usize) -> Option<Option<Segment<'a>>> {
        let header = self.header(n)?;
        if word(header, 0)? != LOAD {
            return Some(None);
        }
        let flags = word(header, 4)?;
        let offset = double(header, 8)?;
        let start = double(header, 16)?;
        let len = double(header, 40)?;
        let bytes = self
            .bytes
            .get(offset..offset.checked_add(double(header, 32)?)?)?;
        start.checked_add(len)?;
        (bytes.len() <= len).then_some(Some(Segment {
            start,
            bytes,
            len,
            is_executable: flags & 1 != 0,
            is_writable: flags & 2 != 0,
        }))
    }
}
