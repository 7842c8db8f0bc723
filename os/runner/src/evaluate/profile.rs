//! Where the instructions of a request go: each block of instructions that QEMU translates and executes is counted, by the source that it is made
//! of, from one request to another many later.
//!
//! QEMU logs the instructions of a block when it translates it, and the block each time it executes it (`-d in_asm,exec`). The
//! debug information says which source an instruction is of, through inlined functions: the innermost that is neither of the
//! standard library nor a lock. A program has frames of its own, so a block that is there twice is of two
//! processes; blocks that follow one another without the kernel in between are of one.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::sync::Mutex;

use addr2line::gimli::{Dwarf, EndianSlice, LittleEndian};
use os_abi::layout;

use super::point::{Load, MODELS};
use super::{AT_ONCE, THREADS, commit};
use crate::build::{self, Image};
use crate::qemu::{self, Machine, Network};
use crate::state;

/// Requests before those that are counted, and those.
const BEFORE: u64 = 256;
const COUNTED: u64 = 512;
/// The function that is called for each request once.
const PRODUCT: &str = "matrix::square";

/// What a request is made of.
const LAYERS: [(&str, &str); 16] = [
    ("client", "the client's program, all of it"),
    ("receive", "the server's program: receive"),
    ("queue", "queue"),
    ("compute", "compute"),
    ("send", "send"),
    (
        "library",
        "calls, completions, locks, the heap of the program",
    ),
    (
        "scheduler",
        "switches of coroutines: the scheduler in the program",
    ),
    (
        "trap",
        "the kernel: registers, into user mode and back and from stack to stack",
    ),
    ("call", "system calls and their completions"),
    ("futex", "futexes"),
    (
        "thread",
        "switches of threads of programs: ready queue, quantum, lending",
    ),
    ("coroutine", "switches of coroutines, or kernel threads"),
    ("clock", "timers"),
    ("tcp", "TCP and IP (`smoltcp`)"),
    (
        "net",
        "the stack around it: sockets, deadlines, the loopback",
    ),
    ("copy", "copies, page tables and the heap of the kernel"),
];

/// The models that are counted: coroutines on both sides, and threads.
const COMPARED: [usize; 2] = [0, 3];

/// Layers that no server can do without, however calls and switches are made.
const SHARED: [&str; 3] = ["client", "compute", "tcp"];

/// What of a model is counted: instructions of a request by layer, in tenths.
struct Profile {
    load: Load,
    layers: [u64; LAYERS.len()],
}

impl Profile {
    fn total(&self) -> u64 {
        self.layers.iter().sum()
    }
}

/// A block of instructions.
struct Block {
    addresses: Vec<u64>,
    /// How often it was executed while requests were counted, by the process.
    count: HashMap<Option<usize>, u64>,
    /// Another block of the same process, or itself.
    parent: usize,
}

/// What the log says, as it comes.
struct Counter {
    product: u64,
    products: u64,
    blocks: Vec<Block>,
    by_code: HashMap<u64, usize>,
    /// The instructions of a block that has been translated and not yet executed.
    translated: Vec<u64>,
    /// Of the present stretch in user mode: a block of the program, and blocks of the vDSO before there was one.
    program: Option<usize>,
    pending: Vec<usize>,
}

fn is_program(address: u64) -> bool {
    (layout::IMAGE as u64..layout::IMAGE_END as u64).contains(&address)
}

fn is_vdso(address: u64) -> bool {
    (layout::VDSO as u64..layout::VDSO as u64 + (1 << 30)).contains(&address)
}

impl Counter {
    fn root(&mut self, mut block: usize) -> usize {
        while self.blocks[block].parent != block {
            let parent = self.blocks[block].parent;
            self.blocks[block].parent = self.blocks[parent].parent;
            block = parent;
        }
        block
    }

    fn count(&mut self, block: usize, process: Option<usize>) {
        if self.is_counting() {
            *self.blocks[block].count.entry(process).or_default() += 1;
        }
    }

    fn is_counting(&self) -> bool {
        (BEFORE..BEFORE + COUNTED).contains(&self.products)
    }

    /// A line of the log. False: all requests are counted.
    fn line(&mut self, line: &str) -> bool {
        if let Some(rest) = line.strip_prefix("0x") {
            let address = rest.split(':').next().unwrap_or("");
            self.translated
                .extend(u64::from_str_radix(address, 16).ok());
            return true;
        }
        let Some((code, place)) = line
            .strip_prefix("Trace ")
            .and_then(|line| line.split_once(": 0x")?.1.split_once(" ["))
        else {
            return true;
        };
        let hexadecimal = |word: Option<&str>| u64::from_str_radix(word?, 16).ok();
        let address = hexadecimal(place.split('/').nth(1));
        let (Some(code), Some(address)) = (hexadecimal(Some(code)), address) else {
            return true;
        };
        if !self.translated.is_empty() {
            let block = Block {
                addresses: core::mem::take(&mut self.translated),
                count: HashMap::new(),
                parent: self.blocks.len(),
            };
            self.by_code.insert(code, self.blocks.len());
            self.blocks.push(block);
        }
        if let Some(&block) = self.by_code.get(&code) {
            self.executed(block, address);
        }
        self.products < BEFORE + COUNTED
    }

    fn executed(&mut self, block: usize, address: u64) {
        if is_program(address) {
            if let Some(other) = self.program {
                let (one, other) = (self.root(block), self.root(other));
                self.blocks[one].parent = other;
            }
            self.program = Some(block);
            let root = self.root(block);
            for of_vdso in core::mem::take(&mut self.pending) {
                self.count(of_vdso, Some(root));
            }
            self.count(block, Some(root));
            if address == self.product {
                self.products += 1;
            }
        } else if is_vdso(address) {
            match self.program {
                Some(program) => {
                    let root = self.root(program);
                    self.count(block, Some(root));
                }
                None => self.pending.push(block),
            }
        } else {
            for of_vdso in core::mem::take(&mut self.pending) {
                self.count(of_vdso, None);
            }
            self.program = None;
            self.count(block, None);
        }
    }
}

/// What is known of a file of code: its debug information, and its functions.
struct Code<'a> {
    lines: addr2line::Context<EndianSlice<'a, LittleEndian>>,
    functions: Vec<(u64, String)>,
}

impl Code<'_> {
    fn new(elf: &[u8]) -> Result<Code<'_>, String> {
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

    /// Names of functions without debug information are of assembly.
    fn symbol(&self, at: u64) -> Option<String> {
        let after = self.functions.partition_point(|(start, _)| *start <= at);
        let (_, name) = &self.functions[after.checked_sub(1)?];
        Some(name.clone())
    }
}

/// The sources of the instructions of an image.
struct Sources<'a> {
    kernel: Code<'a>,
    program: Code<'a>,
    vdso: Code<'a>,
    known: HashMap<u64, Rc<Source>>,
}

/// The function an instruction is of, and its file.
#[derive(Default)]
struct Source {
    file: String,
    /// It and those that it was inlined into.
    functions: Vec<String>,
    /// In the program that is measured: the function of the source that has the line.
    within: String,
}

impl Sources<'_> {
    fn of(&mut self, address: u64) -> Rc<Source> {
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
            source.within = within(&text.unwrap_or_default(), line);
        }
        let source = Rc::new(source);
        self.known.insert(address, source.clone());
        source
    }
}

/// Files of the standard library, and of what is part of whatever uses it.
fn is_transparent(file: &str) -> bool {
    let is_library = file.contains("/rustc/") || file.contains("/rust/library/");
    let is_lock = ["/arch/lock.rs", "/arch/csr.rs", "/arch/mod.rs"];
    is_library && !file.contains("compiler-builtins")
        || is_lock.iter().any(|lock| file.ends_with(lock))
}

/// The layer of an instruction of the kernel, by parts of the name of its file.
const OF_FILES: [(&str, &[&str]); 10] = [
    (
        "tcp",
        &["/smoltcp-", "/managed-", "/byteorder-", "/heapless-"],
    ),
    (
        "copy",
        &[
            "compiler-builtins",
            "compiler_builtins",
            "kernel/src/memory/",
        ],
    ),
    ("net", &["kernel/src/net/", "kernel/src/devices/"]),
    ("futex", &["kernel/src/futex.rs"]),
    (
        "clock",
        &[
            "kernel/src/timers.rs",
            "kernel/src/sleep.rs",
            "kernel/src/clock.rs",
        ],
    ),
    ("trap", &["kernel/src/arch/trap.rs"]),
    (
        "thread",
        &[
            "kernel/src/users",
            "kernel/src/switching.rs",
            "kernel/src/global.rs",
            "kernel/src/process/lending.rs",
            "kernel/src/process/thread",
        ],
    ),
    (
        "call",
        &["kernel/src/syscall", "kernel/src/process", "abi/src/"],
    ),
    ("coroutine", &["crates/core/", "kernel/src/"]),
    ("net", &["core/src/net/"]),
];

/// The same of what is of the standard library alone, as a function of its own: by its type.
const OF_NAMES: [(&str, &[&str]); 5] = [
    ("tcp", &["smoltcp"]),
    ("net", &["os_kernel::net"]),
    ("call", &["os_kernel::process", "os_kernel::syscall"]),
    ("coroutine", &["upshift_core", "os_kernel"]),
    ("copy", &["alloc::", "core::"]),
];

fn layer_in_kernel(source: &Source) -> &'static str {
    let has = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let mut of_files = OF_FILES.iter();
    let by_file = of_files.find(|(_, parts)| has(&source.file, parts));
    let by_name = || {
        let is_named = |parts: &[&str]| source.functions.iter().any(|name| has(name, parts));
        let mut of_names = OF_NAMES.iter();
        // What has no name is of assembly: saving and restoring registers.
        let found = of_names.find(|(_, parts)| !source.file.is_empty() && is_named(parts));
        found.map_or("trap", |(layer, _)| layer)
    };
    by_file.map_or_else(by_name, |(layer, _)| layer)
}

/// The layer of an instruction of the server's program.
fn layer_in_program(source: &Source) -> &'static str {
    let is_in = |part: &str| source.file.contains(part);
    match source.within.as_str() {
        "push" | "pop" | "close" => "queue",
        "compute" | "square" => "compute",
        "send" => "send",
        _ if is_in("bin/matrix/") => "receive",
        _ if is_in("crates/core/") || is_in("vdso/src") => "scheduler",
        _ => "library",
    }
}

/// The function of a text that a line is in: the last one that begins before it. Debug information names closures without what
/// they are in.
fn within(text: &str, line: u32) -> String {
    let lines = text.lines().take(line as usize);
    let names = lines.filter_map(|line| line.split_once("fn ")?.1.split(['(', '<']).next());
    names.last().unwrap_or("").to_owned()
}

/// Counts a closed loop of a model.
fn measure(image: &Image, load: Load, is_verbose: bool) -> Result<Profile, String> {
    let server = match load.has_threads() {
        true => "threads",
        false => "coroutines",
    };
    let (connections, n, millis) = (load.connections, load.n, load.millis);
    let machine = Machine {
        cpu: "",
        smp: 1,
        icount: true,
        network: Network::No,
        disk: None,
        arguments: format!(
            "init=matrix with={server},{connections},{n},1,0,{millis},1 threads={THREADS}"
        ),
    };
    let kernel = std::fs::read(&image.kernel)
        .map_err(|error| format!("{}: {error}", image.kernel.display()))?;
    let (program, vdso) = (build::program("matrix")?, build::program("os-vdso")?);
    let mut sources = Sources {
        kernel: Code::new(&kernel)?,
        program: Code::new(&program)?,
        vdso: Code::new(&vdso)?,
        known: HashMap::new(),
    };
    let product = product(&sources.program)?;
    let mut counter = Counter {
        product,
        products: 0,
        blocks: Vec::new(),
        by_code: HashMap::new(),
        translated: Vec::new(),
        program: None,
        pending: Vec::new(),
    };
    let mut child = qemu::command(image, &machine, None)
        .args(["-monitor", "none", "-d", "in_asm,exec,nochain"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(qemu::explain)?;
    let log = child.stderr.take().expect("stderr is piped");
    let mut log = BufReader::with_capacity(1 << 20, log);
    let mut line = String::new();
    let mut is_wanted = true;
    while is_wanted && log.read_line(&mut line).is_ok_and(|count| count > 0) {
        is_wanted = counter.line(line.trim_end());
        line.clear();
    }
    let _ = child.kill();
    let _ = child.wait();
    if is_wanted {
        let products = counter.products;
        return Err(format!(
            "{load}: the machine has ended after {products} requests"
        ));
    }
    Ok(sum(counter, &mut sources, load, is_verbose))
}

/// Where the function is that multiplies.
fn product(program: &Code<'_>) -> Result<u64, String> {
    let is_it = |name: &str| {
        addr2line::demangle_auto(name.into(), Some(addr2line::gimli::DW_LANG_Rust))
            .starts_with(PRODUCT)
    };
    let mut functions = program.functions.iter();
    let found = functions.find(|(_, name)| is_it(name));
    let address = found.map(|(address, _)| *address);
    address.ok_or_else(|| format!("there is no function {PRODUCT}"))
}

/// Instructions by layer.
fn sum(mut counter: Counter, sources: &mut Sources<'_>, load: Load, is_verbose: bool) -> Profile {
    let mut client = None;
    for block in 0..counter.blocks.len() {
        let address = counter.blocks[block].addresses[0];
        if is_program(address) && sources.of(address).file.ends_with("matrix/client.rs") {
            client = Some(counter.root(block));
        }
    }
    let mut layers = [0; LAYERS.len()];
    let mut by_source: HashMap<(&str, String), u64> = HashMap::new();
    for block in 0..counter.blocks.len() {
        let counts: Vec<(Option<usize>, u64)> = counter.blocks[block].count.drain().collect();
        for (process, count) in counts {
            let process = process.map(|process| counter.root(process));
            for at in 0..counter.blocks[block].addresses.len() {
                let address = counter.blocks[block].addresses[at];
                let source = sources.of(address);
                let layer = match () {
                    () if !is_program(address) && !is_vdso(address) => layer_in_kernel(&source),
                    () if process.is_some() && process == client => "client",
                    () => layer_in_program(&source),
                };
                let mut layers = LAYERS.iter().zip(&mut layers);
                if let Some((_, sum)) = layers.find(|((name, _), _)| *name == layer) {
                    *sum += count;
                }
                if is_verbose {
                    let file = source.file.rsplit("src/").next().unwrap_or("");
                    let function = source.functions.first().map_or("?", String::as_str);
                    let key = (layer, format!("{file} {function}"));
                    *by_source.entry(key).or_default() += count;
                }
            }
        }
    }
    let mut all: Vec<_> = by_source.into_iter().collect();
    all.sort_by_key(|(_, count)| core::cmp::Reverse(*count));
    for ((layer, source), count) in all.into_iter().take(150) {
        println!(
            "{:>9.1} {layer:<10} {source}",
            count as f64 / COUNTED as f64
        );
    }
    let of_request = |count: u64| count * 10 / COUNTED;
    Profile {
        load,
        layers: layers.map(of_request),
    }
}

/// Models, connections and orders that are counted.
fn plan() -> Vec<Load> {
    let shapes = [(16, 1), (64, 1)];
    let load = |(connections, n)| {
        COMPARED.into_iter().map(move |model| Load {
            model,
            connections,
            n,
            levels: 1,
            period: 0,
            // More than it takes.
            millis: 2_000,
            harts: 1,
            by_clock: false,
        })
    };
    shapes.into_iter().flat_map(load).collect()
}

/// Counts all, and writes the file. `is_verbose`: prints the functions that take most.
pub(crate) fn run(file: &Path, is_verbose: bool) -> Result<(), String> {
    let threads = build::with_kernel_threads()?;
    let coroutines = build::image()?;
    let queue = Mutex::new(plan().into_iter());
    let profiles = Mutex::new(Vec::new());
    let work = || -> Result<(), String> {
        while let Some(load) = queue.lock().map_or(None, |mut queue| queue.next()) {
            let image = match load.has_kernel_threads() {
                true => &threads,
                false => &coroutines,
            };
            let profile = measure(image, load, is_verbose)?;
            println!("{load}: {}", tenths(profile.total()));
            if let Ok(mut profiles) = profiles.lock() {
                profiles.push(profile);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let mut ended = workers.into_iter().map(|worker| worker.join());
        ended.try_for_each(|end| end.unwrap_or(Err("a runner panicked".to_owned())))
    })?;
    let mut profiles = profiles.into_inner().unwrap_or_default();
    profiles.sort_by_key(|profile| {
        let load = profile.load;
        (load.n, load.connections, load.model)
    });
    let mut text = format!(
        "# commit {}\nmodel,connections,n,layer,instructions\n",
        commit()
    );
    for Profile { load, layers } in &profiles {
        for ((name, _), count) in LAYERS.iter().zip(layers) {
            let (model, connections, n) = (MODELS[load.model], load.connections, load.n);
            let _ = writeln!(text, "{model},{connections},{n},{name},{}", tenths(*count));
        }
    }
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

fn tenths(count: u64) -> String {
    format!("{}.{}", count / 10, count % 10)
}

/// The profiles of a file: instructions of a request by shape, layer and model.
struct Table {
    /// Connections and order.
    shapes: Vec<(u32, u32)>,
    cells: HashMap<(u32, u32, String, usize), f64>,
}

impl Table {
    fn parse(file: &str) -> Table {
        let mut table = Table {
            shapes: Vec::new(),
            cells: HashMap::new(),
        };
        for line in file.lines() {
            let words: Vec<&str> = line.split(',').collect();
            let &[model, connections, n, layer, count] = &words[..] else {
                continue;
            };
            let model = MODELS.iter().position(|known| *known == model);
            let (Some(model), Ok(connections), Ok(n), Ok(count)) =
                (model, connections.parse(), n.parse(), count.parse())
            else {
                continue;
            };
            if !table.shapes.contains(&(connections, n)) {
                table.shapes.push((connections, n));
            }
            let key = (connections, n, layer.to_owned(), model);
            table.cells.insert(key, count);
        }
        table
    }

    fn cell(&self, (connections, n): (u32, u32), layer: &str, model: usize) -> f64 {
        let key = (connections, n, layer.to_owned(), model);
        self.cells.get(&key).copied().unwrap_or(0.0)
    }

    /// Of those layers that `wanted` names.
    fn sum(&self, shape: (u32, u32), model: usize, wanted: impl Fn(&str) -> bool) -> f64 {
        let names = LAYERS.iter().map(|(name, _)| *name);
        let wanted = names.filter(|name| wanted(name));
        wanted.map(|name| self.cell(shape, name, model)).sum()
    }
}

/// Adds the tables of a file of profiles to the page.
pub(crate) fn draw(page: &mut String, folder: &str, file: &str) {
    let table = Table::parse(file);
    if table.shapes.is_empty() {
        return;
    }
    let mut commits = file
        .lines()
        .filter_map(|line| line.strip_prefix("# commit "));
    let commit = commits.next().unwrap_or("unknown");
    let _ = writeln!(
        page,
        "\n## Where the instructions go\n\n`cargo xtask os -- evaluate --profile`, commit `{commit}`: instructions of a request in a closed loop on one hart, by the source that they are compiled from \
         (each block that QEMU executes is counted, over {COUNTED} requests after the first {BEFORE}; inlined functions count for themselves, the standard library for what calls it). \
         The client and both ends of its connection are in the machine. The figures are in [`profile.csv`]({folder}/profile.csv)."
    );
    for &shape in &table.shapes {
        let (connections, n) = shape;
        let _ = writeln!(
            page,
            "\n{n} × {n} on {connections} connections:\n\n| | {} |\n|---|{}",
            COMPARED.map(|model| MODELS[model]).join(" | "),
            "---|".repeat(COMPARED.len())
        );
        let mut row = |title: &str, cell: &dyn Fn(usize) -> f64| {
            let cells = COMPARED.map(|model| format!("{:.0}", cell(model)));
            let _ = writeln!(page, "| {title} | {} |", cells.join(" | "));
        };
        for (name, title) in LAYERS {
            row(title, &|model| table.cell(shape, name, model));
        }
        row("**all**", &|model| table.sum(shape, model, |_| true));
    }
    let _ = writeln!(
        page,
        "\nWhat the models share is the client, the product, and TCP and IP: if that alone is more than half of KTUT, no kernel answers twice as much. \
         What a kernel decides is the rest.\n\n\
         | | shared, KCUC | shared, KTUT | share of KTUT | KTUT to KCUC | KTUT to KCUC, of the rest |\n|---|---|---|---|---|---|"
    );
    for &shape in &table.shapes {
        let (connections, n) = shape;
        let is_shared = |name: &str| SHARED.contains(&name);
        let all = |model| table.sum(shape, model, |_| true);
        let shared = |model| table.sum(shape, model, is_shared);
        let rest = |model| all(model) - shared(model);
        let _ = writeln!(
            page,
            "| {n} × {n} on {connections} | {:.0} | {:.0} | {:.0} % | {:.2} × | {:.2} × |",
            shared(0),
            shared(3),
            shared(3) * 100.0 / all(3),
            all(3) / all(0),
            rest(3) / rest(0)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter() -> Counter {
        Counter {
            product: 0x1_0000,
            products: BEFORE,
            blocks: Vec::new(),
            by_code: HashMap::new(),
            translated: Vec::new(),
            program: None,
            pending: Vec::new(),
        }
    }

    /// A block at `address` with code at `code`; with its translation it has two instructions.
    fn executed(counter: &mut Counter, code: u64, address: u64, is_new: bool) {
        if is_new {
            for at in [address, address + 4] {
                counter.line(&format!("{at:#018x}:  00000013          nop"));
            }
        }
        counter.line(&format!(
            "Trace 0: {code:#x} [0/{address:016x}/0/ff020200] "
        ));
    }

    #[test]
    fn blocks_of_two_processes_are_told_apart() {
        let mut counter = counter();
        let vdso = layout::VDSO as u64;
        let kernel = 0xffff_ffc0_8020_0000;
        // One process, with a block of the vDSO before and after; then another, in code of its own.
        executed(&mut counter, 1, vdso, true);
        executed(&mut counter, 2, 0x2_0000, true);
        executed(&mut counter, 3, 0x2_0100, true);
        executed(&mut counter, 1, vdso, false);
        executed(&mut counter, 4, kernel, true);
        executed(&mut counter, 5, 0x2_0000, true);
        executed(&mut counter, 1, vdso, false);
        assert_eq!(counter.blocks.len(), 5);
        let roots: Vec<_> = [1, 2, 4].map(|block| counter.root(block)).into();
        assert_eq!(roots[0], roots[1]);
        assert_ne!(roots[0], roots[2]);
        let of_vdso: HashMap<_, _> = core::mem::take(&mut counter.blocks[0].count);
        let mut counts = [0, 0];
        for (process, count) in of_vdso {
            let root = process.map(|process| counter.root(process));
            counts[usize::from(root == Some(roots[2]))] += count;
        }
        assert_eq!(counts, [2, 1]);
        assert_eq!(counter.blocks[3].count[&None], 1);
        assert_eq!(counter.blocks[3].addresses.len(), 2);
    }

    #[test]
    fn counting_ends_with_the_last_request() {
        let mut counter = counter();
        counter.products = BEFORE + COUNTED - 2;
        assert!(counter.line("0x0000000000010000:  00000013  nop"));
        assert!(counter.line("Trace 0: 0x1 [0/0000000000010000/0/0] "));
        assert!(!counter.line("Trace 0: 0x1 [0/0000000000010000/0/0] "));
    }

    #[test]
    fn a_line_is_of_the_function_before_it() {
        let text = "fn first() {\n    x();\n}\n\nasync fn second<T>(one: T) {\n    one\n}\n";
        assert_eq!(within(text, 2), "first");
        assert_eq!(within(text, 6), "second");
        assert_eq!(within("", 6), "");
    }

    #[test]
    fn the_rest_is_what_is_not_shared() {
        let file = "# commit x\nmodel,connections,n,layer,instructions\n\
                    KCUC,64,1,tcp,10.0\nKCUC,64,1,trap,5.0\nKTUT,64,1,tcp,10.0\nKTUT,64,1,trap,15.0\n";
        let mut page = String::new();
        draw(&mut page, "folder", file);
        assert!(
            page.contains("| 1 × 1 on 64 | 10 | 10 | 40 % | 1.67 × | 3.00 × |"),
            "{page}"
        );
    }
}
