//! Counts the blocks of instructions that QEMU executes, from QEMU's log.
//!
//! QEMU logs a block with its instructions when it translates the block, and each time that it
//! executes the block (`-d in_asm,exec`). Each process has its own physical pages, and QEMU
//! translates code per physical page. Two different blocks at the same virtual address therefore
//! belong to different processes. Blocks that follow each other without the kernel in between
//! belong to one process.

use std::collections::HashMap;

use super::sources::{is_program, is_vdso};
use super::{COUNTED, WARM_UP};

pub(super) struct Block {
    pub(super) addresses: Vec<u64>,
    /// Number of executions while requests were counted, by process.
    pub(super) count: HashMap<Option<usize>, u64>,
    /// Parent in the union-find forest that groups the blocks of a process. A root is its own
    /// parent.
    parent: usize,
}

/// State of the counter while it reads the log.
pub(super) struct Counter {
    request_address: u64,
    /// Number of requests so far.
    pub(super) requests: u64,
    pub(super) blocks: Vec<Block>,
    /// Blocks by the address of their translated code.
    by_code: HashMap<u64, usize>,
    /// Instructions of a block that has been translated but not executed.
    translated: Vec<u64>,
    /// The last block of a program since the kernel was left, if any.
    program: Option<usize>,
    /// Blocks of the vDSO that were executed since the kernel was left and before any block of a
    /// program. Their process is not known yet.
    pending: Vec<usize>,
}

impl Counter {
    /// Creates a counter. Each call of the function at `request_address` counts as a request.
    pub(super) fn new(request_address: u64) -> Counter {
        Counter {
            request_address,
            requests: 0,
            blocks: Vec::new(),
            by_code: HashMap::new(),
            translated: Vec::new(),
            program: None,
            pending: Vec::new(),
        }
    }

    /// Returns the block that represents all blocks of the same process.
    pub(super) fn root(&mut self, mut block: usize) -> usize {
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
        (WARM_UP..WARM_UP + COUNTED).contains(&self.requests)
    }

    /// Processes a line of the log; returns false when all requests have been counted.
    pub(super) fn line(&mut self, line: &str) -> bool {
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
            self.count_execution(block, address);
        }
        self.requests < WARM_UP + COUNTED
    }

    /// Counts an execution of a block, and determines its process.
    fn count_execution(&mut self, block: usize, address: u64) {
        if is_program(address) {
            if let Some(other) = self.program {
                let (root, other) = (self.root(block), self.root(other));
                self.blocks[root].parent = other;
            }
            self.program = Some(block);
            let root = self.root(block);
            for vdso_block in core::mem::take(&mut self.pending) {
                self.count(vdso_block, Some(root));
            }
            self.count(block, Some(root));
            if address == self.request_address {
                self.requests += 1;
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
            for vdso_block in core::mem::take(&mut self.pending) {
                self.count(vdso_block, None);
            }
            self.program = None;
            self.count(block, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use os_abi::layout;

    use super::*;

    fn counter() -> Counter {
        Counter {
            requests: WARM_UP,
            ..Counter::new(0x1_0000)
        }
    }

    /// Logs an execution of the block at `address` with its code at `code`. A new block is also
    /// logged as translated, with two instructions.
    fn log_execution(counter: &mut Counter, code: u64, address: u64, is_new: bool) {
        if is_new {
            for instruction in [address, address + 4] {
                counter.line(&format!("{instruction:#018x}:  00000013          nop"));
            }
        }
        counter.line(&format!(
            "Trace 0: {code:#x} [0/{address:016x}/0/ff020200] "
        ));
    }

    #[test]
    fn blocks_of_two_processes_are_distinguished() {
        let mut counter = counter();
        let vdso = layout::VDSO as u64;
        let kernel = 0xffff_ffc0_8020_0000;
        // The first process executes a block of the vDSO before and after its own blocks; then a
        // second process executes a block of its own.
        log_execution(&mut counter, 1, vdso, true);
        log_execution(&mut counter, 2, 0x2_0000, true);
        log_execution(&mut counter, 3, 0x2_0100, true);
        log_execution(&mut counter, 1, vdso, false);
        log_execution(&mut counter, 4, kernel, true);
        log_execution(&mut counter, 5, 0x2_0000, true);
        log_execution(&mut counter, 1, vdso, false);
        assert_eq!(counter.blocks.len(), 5);
        let roots: Vec<_> = [1, 2, 4].map(|block| counter.root(block)).into();
        assert_eq!(roots[0], roots[1]);
        assert_ne!(roots[0], roots[2]);
        let vdso_block: HashMap<_, _> = core::mem::take(&mut counter.blocks[0].count);
        let mut counts = [0, 0];
        for (process, count) in vdso_block {
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
        counter.requests = WARM_UP + COUNTED - 2;
        assert!(counter.line("0x0000000000010000:  00000013  nop"));
        assert!(counter.line("Trace 0: 0x1 [0/0000000000010000/0/0] "));
        assert!(!counter.line("Trace 0: 0x1 [0/0000000000010000/0/0] "));
    }
}
