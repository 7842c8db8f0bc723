//! Finds programs in the archive, which is a cpio file in the `newc` format.
//!
//! The parser is safe for any bytes: a malformed archive ends early.

use crate::arch::lock::Once;
use crate::vdso;

/// Length of a header in bytes.
const HEADER: usize = 110;

static PROGRAMS: Once<&'static [u8]> = Once::new();

/// Sets the archive, which stays in memory for ever. Called while booting.
pub(crate) fn set(archive: &'static [u8]) {
    PROGRAMS.set(archive);
}

pub(crate) fn find(name: &str) -> Option<&'static [u8]> {
    let mut files = files(PROGRAMS.try_get()?);
    files
        .find(|(known, _)| *known == name)
        .map(|(_, contents)| contents)
}

/// Returns the name of program number `index`. The vDSO, which is also in the archive, is not
/// counted. O(files).
pub(crate) fn program(index: usize) -> Option<&'static str> {
    let names = files(PROGRAMS.try_get()?).map(|(name, _)| name);
    names.filter(|name| *name != vdso::NAME).nth(index)
}

fn files(archive: &'static [u8]) -> impl Iterator<Item = (&'static str, &'static [u8])> {
    let mut offset = 0;
    core::iter::from_fn(move || {
        let header = archive.get(offset..offset + HEADER)?;
        if !header.starts_with(b"070701") {
            return None;
        }
        let size = field(header, 6)?;
        let name_size = field(header, 11)?;
        let name_start = offset + HEADER;
        let name = archive.get(name_start..name_start.checked_add(name_size.checked_sub(1)?)?)?;
        let start = (name_start + name_size).next_multiple_of(4);
        let contents = archive.get(start..start.checked_add(size)?)?;
        offset = (start + size).next_multiple_of(4);
        let name = core::str::from_utf8(name).ok()?;
        (name != "TRAILER!!!").then_some((name, contents))
    })
}

/// Returns field `n` of a header. A field has eight hexadecimal digits.
fn field(header: &[u8], n: usize) -> Option<usize> {
    let digits = core::str::from_utf8(header.get(6 + 8 * n..14 + 8 * n)?).ok()?;
    usize::from_str_radix(digits, 16).ok()
}
