//! Finds the source of an instruction in the debug information of the kernel, the measured program
//! and the vDSO: the innermost function that belongs neither to the standard library nor to a lock.

use std::collections::HashMap;
use std::rc::Rc;

use addr2line::gimli::{Dwarf, EndianSlice, LittleEndian};
use os_abi::layout;

use crate::{build, state};

/// Name of the function that is called once per request.
const REQUEST_FUNCTION: &str = "matrix::begin_square";

pub(super) fn is_program(address: u64) -> bool {
    (layout::IMAGE as u64..layout::IMAGE_END as u64).contains(&address)
}

pub(super) fn is_vdso(address: u64) -> bool {
    (layout::VDSO as u64..layout::VDSO as u64 + (1 << 30)).contains(&address)
}

/// A file of code: its debug information and its functions.
pub(super) struct Code<'a> {
    lines: addr2line::Context<EndianSlice<'a, LittleEndian>>,
    functions: Vec<(u64, String)>,
}

impl Code<'_> {
    pub(super) fn new(elf: &[u8]) -> Result<Code<'_>, String> {
        let load = |id: addr2line::gimli::SectionId| {
            let section = state::section(elf, id.name());
            Ok::<_, addr2line::gimli::Error>(EndianSlice::new(section, LittleEndian))
        };
        let lines = Dwarf::load(load).and_then(addr2line::Context::from_dwarf);
        Ok(Code {
            lines: lines.map_err(|error| format!("debug information: {error}"))?,
            functions: state::symbols(elf),
        })
    }

    /// Returns the symbol at an address. Functions without debug information are written in
    /// assembly.
    fn symbol(&self, at: u64) -> Option<String> {
        let after = self.functions.partition_point(|(start, _)| *start <= at);
        let (_, name) = &self.functions[after.checked_sub(1)?];
        Some(name.clone())
    }
}

pub(super) struct Sources<'a> {
    pub(super) kernel: Code<'a>,
    pub(super) program: Code<'a>,
    pub(super) vdso: Code<'a>,
    pub(super) known: HashMap<u64, Rc<Source>>,
}

#[derive(Default)]
pub(super) struct Source {
    pub(super) file: String,
    /// The function, and the functions into which it was inlined.
    pub(super) functions: Vec<String>,
    /// Name of the function that contains the line, for sources of the measured program.
    pub(super) enclosing_function: String,
}

impl Sources<'_> {
    /// Returns the source of the instruction at an address.
    pub(super) fn find(&mut self, address: u64) -> Rc<Source> {
        if let Some(known) = self.known.get(&address) {
            return known.clone();
        }
        let (code, at) = match () {
            () if is_program(address) => (&self.program, address),
            () if is_vdso(address) => (&self.vdso, address - layout::VDSO as u64),
            () => (&self.kernel, address),
        };
        let (mut source, mut line) = (Source::default(), 0);
        if let Ok(mut frames) = code.lines.find_frames(at).skip_all_loads() {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame
                    .function
                    .as_ref()
                    .and_then(|name| name.demangle().ok());
                source.functions.extend(name.map(|name| name.into_owned()));
                if let Some(location) = frame.location
                    && let Some(file) = location.file
                    && (source.file.is_empty() || is_transparent(&source.file))
                {
                    source.file = file.to_owned();
                    line = location.line.unwrap_or(0);
                }
            }
        }
        if source.functions.is_empty() {
            source.functions.extend(code.symbol(at));
        }
        if let Some((_, name)) = source.file.split_once("bin/matrix/") {
            let text =
                std::fs::read_to_string(build::root().join("user/src/bin/matrix").join(name));
            source.enclosing_function = enclosing_function(&text.unwrap_or_default(), line);
        }
        let source = Rc::new(source);
        self.known.insert(address, source.clone());
        source
    }
}

/// Returns whether a file belongs to the standard library, or to code that counts as part of its
/// caller.
fn is_transparent(file: &str) -> bool {
    let is_library = file.contains("/rustc/") || file.contains("/rust/library/");
    let is_lock = ["/arch/lock.rs", "/arch/csr.rs", "/arch/mod.rs"];
    is_library && !file.contains("compiler-builtins")
        || is_lock.iter().any(|lock| file.ends_with(lock))
}

/// Returns the address of the function that is called once per request.
pub(super) fn request_address(program: &Code<'_>) -> Result<u64, String> {
    let is_wanted = |name: &str| {
        addr2line::demangle_auto(name.into(), Some(addr2line::gimli::DW_LANG_Rust))
            .starts_with(REQUEST_FUNCTION)
    };
    let mut functions = program.functions.iter();
    let function = functions.find(|(_, name)| is_wanted(name));
    let address = function.map(|(address, _)| *address);
    address.ok_or_else(|| format!("there is no function {REQUEST_FUNCTION}"))
}

/// Returns the name of the function that contains a line of a source text: the last function that
/// begins before the line. Debug information names closures without their function.
fn enclosing_function(text: &str, line: u32) -> String {
    let lines = text.lines().take(line as usize);
    let names = lines.filter_map(|line| line.split_once("fn ")?.1.split(['(', '<']).next());
    names.last().unwrap_or("").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_belongs_to_the_function_before_it() {
        let text = "fn first() {\n    x();\n}\n\nasync fn second<T>(one: T) {\n    one\n}\n";
        assert_eq!(enclosing_function(text, 2), "first");
        assert_eq!(enclosing_function(text, 6), "second");
        assert_eq!(enclosing_function("", 6), "");
    }
}
