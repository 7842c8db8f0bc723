//! Assigns each instruction of a request to a layer, such as TCP, by the source of the instruction.

use std::collections::HashMap;

use super::COUNTED;
use super::counter::Counter;
use super::sources::{Source, Sources, is_program, is_vdso};
use crate::evaluate::point::Load;

/// Layers of a request, with their titles on the page.
pub(super) const LAYERS: [(&str, &str); 16] = [
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

/// Layers that every server needs, however calls and switches are implemented.
pub(super) const SHARED: [&str; 3] = ["client", "compute", "tcp"];

/// Instructions of a request by layer, in tenths, for one load.
pub(super) struct Profile {
    pub(super) load: Load,
    pub(super) layers: [u64; LAYERS.len()],
}

impl Profile {
    pub(super) fn total(&self) -> u64 {
        self.layers.iter().sum()
    }
}

/// Layers of the kernel's instructions, by parts of the file name.
const LAYERS_BY_FILE: [(&str, &[&str]); 10] = [
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
            "kernel/src/run_queue",
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
    ("coroutine", &["scheduler/core/", "kernel/src/"]),
    ("net", &["core/src/net/"]),
];

/// Layers of instructions that belong only to the standard library, by the type of the function.
const LAYERS_BY_TYPE: [(&str, &[&str]); 5] = [
    ("tcp", &["smoltcp"]),
    ("net", &["os_kernel::net"]),
    ("call", &["os_kernel::process", "os_kernel::syscall"]),
    ("coroutine", &["upshift_core", "os_kernel"]),
    ("copy", &["alloc::", "core::"]),
];

fn layer_in_kernel(source: &Source) -> &'static str {
    let has = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let mut by_files = LAYERS_BY_FILE.iter();
    let by_file = by_files.find(|(_, parts)| has(&source.file, parts));
    let by_name = || {
        let is_named = |parts: &[&str]| source.functions.iter().any(|name| has(name, parts));
        let mut by_types = LAYERS_BY_TYPE.iter();
        // Code without a file is assembly, which saves and restores registers.
        let found = by_types.find(|(_, parts)| !source.file.is_empty() && is_named(parts));
        found.map_or("trap", |(layer, _)| layer)
    };
    by_file.map_or_else(by_name, |(layer, _)| layer)
}

/// Returns the layer of an instruction of the server's program.
fn layer_in_program(source: &Source) -> &'static str {
    let is_in = |part: &str| source.file.contains(part);
    match source.enclosing_function.as_str() {
        "push" | "pop" | "close" => "queue",
        "compute" | "square" | "begin_square" | "square_row" => "compute",
        "send" => "send",
        _ if is_in("bin/matrix/") => "receive",
        _ if is_in("scheduler/core/") || is_in("vdso/src") => "scheduler",
        _ => "library",
    }
}

/// Sums the executed instructions by layer. With `is_verbose`, also prints the most expensive
/// functions.
pub(super) fn sum(
    mut counter: Counter,
    sources: &mut Sources<'_>,
    load: Load,
    is_verbose: bool,
) -> Profile {
    let mut client = None;
    for block in 0..counter.blocks.len() {
        let address = counter.blocks[block].addresses[0];
        if is_program(address) && sources.find(address).file.ends_with("matrix/client.rs") {
            client = Some(counter.root(block));
        }
    }
    let mut layers = [0; LAYERS.len()];
    let mut by_source: HashMap<(&str, String), u64> = HashMap::new();
    for block in 0..counter.blocks.len() {
        let counts: Vec<(Option<usize>, u64)> = counter.blocks[block].count.drain().collect();
        for (process, count) in counts {
            let process = process.map(|process| counter.root(process));
            for index in 0..counter.blocks[block].addresses.len() {
                let address = counter.blocks[block].addresses[index];
                let source = sources.find(address);
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
    let per_request = |count: u64| count * 10 / COUNTED;
    Profile {
        load,
        layers: layers.map(per_request),
    }
}
