//! Counts the share of instructions that harts spend in spin loops: in the blocks that end with
//! `pause`, and in the block after each, which checks the condition again.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::sources::{self, Code};
use crate::build::{self, Image};
use crate::evaluate::point::Load;
use crate::evaluate::{THREADS, plan, server_of};
use crate::qemu::{self, Machine};

/// The instruction `pause`, which a spin loop executes; QEMU ends a block with it.
const PAUSE: &str = "0100000f";
/// Number of requests before the count.
const WARM_UP: u64 = 128;
/// Number of requests whose instructions are counted.
const COUNTED: u64 = 128;

/// Counters of the instructions of all harts.
#[derive(Default)]
pub(super) struct Spins {
    request_address: u64,
    /// Number of requests so far.
    requests: u64,
    /// Number of instructions of each block, by its code, and whether it ends with `pause`.
    blocks: HashMap<u64, (u64, bool)>,
    /// The block that has been translated but not executed, in the same form.
    translated: (u64, bool),
    /// Whether the last block of a hart ended with `pause`.
    has_paused: HashMap<u32, bool>,
    /// Number of counted instructions.
    pub(super) all: u64,
    /// Number of counted instructions in spin loops.
    pub(super) spinning: u64,
}

impl Spins {
    /// Creates counters. Each call of the function at `request_address` counts as a request.
    fn new(request_address: u64) -> Spins {
        Spins {
            request_address,
            ..Spins::default()
        }
    }

    /// Processes a line of the log; returns false when all requests have been counted.
    fn line(&mut self, line: &str) -> bool {
        if let Some((_, instruction)) = line
            .strip_prefix("0x")
            .and_then(|rest| rest.split_once(':'))
        {
            let is_pause = instruction.trim_start().starts_with(PAUSE);
            self.translated = (self.translated.0 + 1, is_pause);
            return true;
        }
        let parse_execution = || {
            let (hart, rest) = line.strip_prefix("Trace ")?.split_once(": 0x")?;
            let (code, place) = rest.split_once(" [")?;
            let hexadecimal = |word: &str| u64::from_str_radix(word, 16).ok();
            let address = hexadecimal(place.split('/').nth(1)?)?;
            Some((hart.parse().ok()?, hexadecimal(code)?, address))
        };
        if let Some((hart, code, address)) = parse_execution() {
            self.count_execution(hart, code, address);
        }
        self.requests < WARM_UP + COUNTED
    }

    fn count_execution(&mut self, hart: u32, code: u64, address: u64) {
        let translated = std::mem::take(&mut self.translated);
        if translated.0 > 0 {
            self.blocks.insert(code, translated);
        }
        self.requests += u64::from(address == self.request_address);
        let Some(&(count, is_pause)) = self.blocks.get(&code) else {
            return;
        };
        let has_paused = self.has_paused.insert(hart, is_pause).unwrap_or(false);
        if self.requests >= WARM_UP {
            self.all += count;
            self.spinning += if is_pause || has_paused { count } else { 0 };
        }
    }
}

pub(super) fn measure(image: &Image, load: Load) -> Result<Spins, String> {
    let server = server_of(load);
    let (connections, n, harts) = (load.connections, load.n, load.harts);
    // More than the time that the requests take.
    let millis = 10 * plan::CLOSED_MILLIS * harts;
    let arguments = format!(
        "init=matrix with={server},{connections},{n},1,0,{millis},{harts} threads={THREADS}"
    );
    let machine = Machine {
        icount: true,
        ..Machine::new(harts, &arguments)
    };
    let program = build::program("matrix")?;
    let mut spins = Spins::new(sources::request_address(&Code::new(&program)?)?);
    let mut child = qemu::command(image, &machine, None)
        .args(["-monitor", "none", "-d", "in_asm,exec,nochain"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(qemu::explain)?;
    let log = child.stderr.take().expect("stderr is piped");
    let mut log = BufReader::with_capacity(1 << 20, log);
    let (mut line, mut is_wanted) = (String::new(), true);
    while is_wanted && log.read_line(&mut line).is_ok_and(|count| count > 0) {
        is_wanted = spins.line(line.trim_end());
        line.clear();
    }
    let _ = child.kill();
    let _ = child.wait();
    if is_wanted {
        let requests = spins.requests;
        return Err(format!(
            "{load}: the machine has ended after {requests} requests"
        ));
    }
    Ok(spins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_and_the_next_block_are_spinning() {
        let mut spins = Spins {
            requests: WARM_UP,
            ..Spins::new(0x1_0000)
        };
        let execute = |spins: &mut Spins, hart: u32, code: u64| {
            assert!(spins.line(&format!("Trace {hart}: {code:#x} [0/{code:016x}/0/0] ")));
        };
        for (code, words) in [
            (1, &["00000013"; 3][..]),
            (2, &[PAUSE]),
            (3, &["00000013"; 2]),
        ] {
            for word in words {
                assert!(spins.line(&format!("0x0000000080000000:  {word}          x")));
            }
            execute(&mut spins, 0, code);
        }
        // The other hart has not paused before its block.
        execute(&mut spins, 1, 3);
        // Hart 0 executes 3, 1 and 2 instructions, hart 1 executes 2. The pause and the block after
        // it are spinning.
        assert_eq!((spins.all, spins.spinning), (8, 3));
    }
}
