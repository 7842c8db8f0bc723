//! Modifies ELF files: produces invalid images, and a stripped image. The code handles only the
//! output of the kernel's linker script.

/// Offsets in an ELF header and in a program header, 64 bits.
const CLASS: usize = 4;
const ENTRY: usize = 24;
const PROGRAM_HEADERS: usize = 32;
const SECTION_HEADERS: usize = 40;
const COUNT: usize = 56;
const SECTION_COUNTS: usize = 60;
const HEADER_SIZE: usize = 56;
const FLAGS: usize = 4;
const FILE_OFFSET: usize = 8;
const ADDRESS: usize = 16;
const FILE_SIZE: usize = 32;
const MEMORY_SIZE: usize = 40;

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const EXECUTE: u32 = 1;
const WRITE: u32 = 2;
/// Tag of the entry in the dynamic section that contains the address of the relocations.
const RELOCATIONS: u64 = 7;

fn word(file: &[u8], at: usize) -> u32 {
    let bytes = file.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_le_bytes)
}

fn double(file: &[u8], at: usize) -> u64 {
    let bytes = file.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

/// Returns the offsets of the program headers of a kind.
fn headers(file: &[u8], kind: u32) -> Vec<usize> {
    let first = double(file, PROGRAM_HEADERS) as usize;
    let count = (word(file, COUNT) & 0xffff) as usize;
    let all = (0..count).map(|n| first + n * HEADER_SIZE);
    all.filter(|at| word(file, *at) == kind).collect()
}

fn set_double(file: &mut [u8], at: usize, value: u64) {
    if let Some(bytes) = file.get_mut(at..at + 8) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

/// Returns invalid copies of a program, each with a name that describes its defect.
pub(crate) fn invalid_programs(file: &[u8]) -> Vec<(String, Vec<u8>)> {
    let valid = stripped(file.to_vec());
    let loads = headers(&valid, LOAD);
    let (first, last) = match loads[..] {
        [first, .., last] => (first, last),
        _ => return Vec::new(),
    };
    let start = double(&valid, first + ADDRESS);
    let copy = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut file = valid.clone();
        change(&mut file);
        (format!("wrong-{name}"), file)
    };
    let set = |offset: usize, value: u64| move |file: &mut Vec<u8>| set_double(file, offset, value);
    vec![
        copy("empty", &|file| file.clear()),
        copy("truncated", &|file| file.truncate(file.len() / 2)),
        copy("header", &|file| file[CLASS] = 1),
        copy("unaligned", &set(first + ADDRESS, start + 16)),
        copy("overlap", &set(last + ADDRESS, start)),
        copy("writable", &|file| *file = with_writable_text(file.clone())),
        copy("place", &set(last + ADDRESS, 0x31_0000_0000)),
        copy("wrap", &set(last + ADDRESS, !0xfff)),
        copy("huge", &set(last + MEMORY_SIZE, 0x0800_0000)),
        copy("entry", &set(ENTRY, 0xffff_ffc0_8020_0000)),
    ]
}

/// Returns the file with the last letter of a symbol's name replaced, so that the symbol is
/// missing.
pub(crate) fn without_symbol(mut file: Vec<u8>, name: &str) -> Vec<u8> {
    let len = name.len();
    let mut at = 0;
    while at + len < file.len() {
        if &file[at..at + len] == name.as_bytes() && file[at + len] == 0 {
            file[at + len - 1] = b'?';
        }
        at += 1;
    }
    file
}

pub(crate) fn with_writable_text(mut file: Vec<u8>) -> Vec<u8> {
    for at in headers(&file, LOAD) {
        let flags = word(&file, at + FLAGS);
        if flags & EXECUTE != 0 {
            let flags = flags | WRITE;
            file[at + FLAGS..at + FLAGS + 4].copy_from_slice(&flags.to_le_bytes());
        }
    }
    file
}

/// Returns the shared object with its first relocation pointing to its first page, which is not
/// data.
pub(crate) fn with_relocation_outside_data(mut file: Vec<u8>) -> Vec<u8> {
    for at in headers(&file, DYNAMIC) {
        let dynamic = double(&file, at + FILE_OFFSET) as usize;
        let entries = (0..64).map(|n| dynamic + 16 * n);
        let table = entries
            .filter(|entry| double(&file, *entry) == RELOCATIONS)
            .map(|entry| double(&file, entry + 8) as usize)
            .next();
        // The linker puts constants at addresses equal to their file offsets.
        if let Some(table) = table.filter(|table| table + 8 <= file.len()) {
            file[table..table + 8].copy_from_slice(&16u64.to_le_bytes());
        }
    }
    file
}

/// Returns the file without sections: no symbols, no debug information.
pub(crate) fn stripped(mut file: Vec<u8>) -> Vec<u8> {
    let end = |at: usize| double(&file, at + FILE_OFFSET) + double(&file, at + FILE_SIZE);
    let end = headers(&file, LOAD).into_iter().map(end).max();
    file[SECTION_HEADERS..SECTION_HEADERS + 8].fill(0);
    file[SECTION_COUNTS..SECTION_COUNTS + 4].fill(0);
    file.truncate(end.map_or(usize::MAX, |end| end as usize));
    file
}
