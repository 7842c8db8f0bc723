//! The layout of the shared pages and their words.
//!
//! Every word is atomic, because the other side may change the word at any moment. Every pattern of
//! bits is valid, because the other side may be hostile. A level is stored as `level + 1`; 0 and
//! all values above 64 mean that there is no level. A zeroed page is idle.
//!
//! Each writer has its own cache line (64 bytes), so vCPUs do not disturb each other. The compiler
//! checks the sizes.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::urgency::{Claim, LEVELS, NO_LEVEL, Standing};

/// Version of layout and protocol; both sides must have the same version.
pub const VERSION: u16 = 3;

/// Maximum number of vCPUs of a process, because their doorbells and the global page travel in one
/// packet, which carries at most 253 descriptors.
pub const VCPUS: usize = 252;

/// Number of CPUs that have a line in the global page.
pub const CPUS: usize = 1024;

/// Maximum number of vCPUs of all processes together.
pub const SLOTS: usize = 65_536;

/// Length of the local page in bytes: four pages of the kernel.
pub const LOCAL_BYTES: usize = size_of::<LocalPage>();

/// Length of the global page in bytes, a multiple of 4096.
pub const GLOBAL_BYTES: usize = size_of::<GlobalPage>().next_multiple_of(4096);

/// The local page: written by its process, read and distrusted by the daemon.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LocalPage {
    process: ProcessLine,
    vcpus: [VcpuLine; VCPUS],
    _rest: [[u64; 8]; 3],
}

/// Line 0 of the local page.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ProcessLine {
    /// [`VERSION`], for a reader of the page in a debugger.
    pub version: AtomicU32,
    /// Number of vCPU lines in use.
    pub vcpus: AtomicU32,
}

/// The words of one vCPU. Only its process writes them.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct VcpuLine {
    bitmap: AtomicU64,
    arrived: AtomicU64,
    running: AtomicU32,
    awaited: AtomicU32,
    sequence: AtomicU32,
}

/// The global page: written by the daemon, read-only for processes.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct GlobalPage {
    header: GlobalHeader,
    cpus: [CpuLine; CPUS],
    slots: [SlotLine; SLOTS],
}

/// Line 0 of the global page.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct GlobalHeader {
    /// Number that identifies the running daemon; changes with each start.
    pub generation: AtomicU64,
    /// CLOCK_MONOTONIC in ns at the daemon's last heartbeat.
    pub heartbeat: AtomicU64,
    /// 1: the daemon elevates threads. 0: processes yield voluntarily.
    pub enforcing: AtomicU32,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Number of CPUs; all CPU numbers are lower than this.
    pub cpus: AtomicU32,
}

/// The standing of one vCPU. Each vCPU has its own line, because the schedulers of all CPUs of a
/// process write the standings of its vCPUs. A page of the file takes memory when a line in it is
/// first touched.
#[derive(Debug)]
#[repr(C, align(64))]
struct SlotLine {
    standing: AtomicU32,
}

/// The decision of one CPU's scheduler. A vCPU that changes its claim within the thresholds of its
/// standing does not wake the scheduler, so bitmap and level may be older than the claims.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct CpuLine {
    /// Levels of the runnable work on this CPU, bit L for level L, after the levels of each vCPU
    /// were limited to the vCPU's ceiling.
    pub bitmap: AtomicU64,
    /// Number of times that the winner has changed.
    pub switches: AtomicU64,
    /// Slot of the winner plus 1; 0: no vCPU is runnable.
    pub winner: AtomicU32,
    /// Level of the winner plus 1; 0: none.
    pub level: AtomicU32,
    /// Number of vCPUs with runnable or awaited work.
    pub contenders: AtomicU32,
    /// Number of times that this line was published.
    pub sequence: AtomicU32,
}

const _: () = {
    assert!(LOCAL_BYTES == 4 * 4096);
    assert!(size_of::<VcpuLine>() == 64 && size_of::<CpuLine>() == 64);
    assert!(size_of::<GlobalPage>() == 64 + CPUS * 64 + SLOTS * 64);
};

fn encode(level: u8) -> u32 {
    if level < LEVELS {
        u32::from(level) + 1
    } else {
        0
    }
}

fn decode(word: u32) -> u8 {
    match word {
        1..=64 => (word - 1) as u8,
        _ => NO_LEVEL,
    }
}

impl LocalPage {
    /// Creates an idle page, for processes without shared memory and for tests.
    pub const fn new() -> LocalPage {
        LocalPage {
            process: ProcessLine {
                version: AtomicU32::new(VERSION as u32),
                vcpus: AtomicU32::new(0),
            },
            vcpus: [const { VcpuLine::new() }; VCPUS],
            _rest: [[0; 8]; 3],
        }
    }

    /// Returns line 0.
    pub fn process(&self) -> &ProcessLine {
        &self.process
    }

    /// Returns the line of vCPU `index`; `None` from [`VCPUS`] on.
    pub fn vcpu(&self, index: usize) -> Option<&VcpuLine> {
        self.vcpus.get(index)
    }
}

impl Default for LocalPage {
    fn default() -> LocalPage {
        LocalPage::new()
    }
}

impl VcpuLine {
    /// Creates an idle line.
    pub const fn new() -> VcpuLine {
        VcpuLine {
            bitmap: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            running: AtomicU32::new(0),
            awaited: AtomicU32::new(0),
            sequence: AtomicU32::new(0),
        }
    }

    /// Returns the levels that have a runnable coroutine. The vCPU may use this word as its own
    /// bitmap.
    pub fn bitmap(&self) -> &AtomicU64 {
        &self.bitmap
    }

    /// Returns the levels of arrivals that the vCPU has not reaped yet. A dispatcher sets the bits,
    /// and the vCPU clears them. The levels count as runnable.
    pub fn arrived(&self) -> &AtomicU64 {
        &self.arrived
    }

    /// Publishes the level of the poll in progress; [`NO_LEVEL`] between polls.
    pub fn set_running(&self, level: u8) {
        self.running.store(encode(level), Release);
    }

    /// Publishes the most urgent level that waits for an event; [`NO_LEVEL`] if there is none.
    pub fn set_awaited(&self, level: u8) {
        self.awaited.store(encode(level), Release);
    }

    /// Counts a turn of the vCPU's scheduling loop, as a sign of life.
    pub fn count_turn(&self) {
        self.sequence
            .store(self.sequence.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Returns the number of turns counted so far, modulo 2³².
    pub fn turns(&self) -> u32 {
        self.sequence.load(Relaxed)
    }

    /// Returns the claim of the vCPU. Reads each word once.
    pub fn claim(&self) -> Claim {
        Claim {
            bitmap: self.bitmap.load(Acquire) | self.arrived.load(Acquire),
            running: decode(self.running.load(Acquire)),
            awaited: decode(self.awaited.load(Acquire)),
        }
    }
}

impl Default for VcpuLine {
    fn default() -> VcpuLine {
        VcpuLine::new()
    }
}

impl GlobalPage {
    /// Returns line 0.
    pub fn header(&self) -> &GlobalHeader {
        &self.header
    }

    /// Returns the line of `cpu`; `None` from [`CPUS`] on.
    pub fn cpu(&self, cpu: usize) -> Option<&CpuLine> {
        self.cpus.get(cpu)
    }

    /// Returns the word of the vCPU in `slot`; `None` from [`SLOTS`] on.
    pub fn slot(&self, slot: usize) -> Option<&AtomicU32> {
        self.slots.get(slot).map(|line| &line.standing)
    }

    /// Returns the standing of the vCPU in `slot`; [`Standing::UNCONTESTED`] if there is no such
    /// slot. One load.
    pub fn standing(&self, slot: usize) -> Standing {
        self.slot(slot).map_or(Standing::UNCONTESTED, |word| {
            Standing::from_word(word.load(Acquire))
        })
    }

    /// Returns the runnable levels of all registered processes, bit L for level L. The result is
    /// only a hint, because each CPU publishes its own word at its own time. One load for each CPU.
    pub fn bitmap(&self) -> u64 {
        let count = self.header.cpus.load(Relaxed) as usize;
        let lines = self.cpus.iter().take(count);
        lines.fold(0, |all, line| all | line.bitmap.load(Acquire))
    }
}

impl CpuLine {
    /// Returns the level of the winner, or [`NO_LEVEL`].
    pub fn winning_level(&self) -> u8 {
        decode(self.level.load(Acquire))
    }

    /// Returns the slot of the winner.
    pub fn winner(&self) -> Option<usize> {
        self.winner
            .load(Acquire)
            .checked_sub(1)
            .map(|slot| slot as usize)
    }

    /// Publishes a decision of the scheduler. Counts a switch if the winner changed.
    pub fn publish(&self, bitmap: u64, winner: Option<usize>, level: u8, contenders: u32) {
        let word = winner.map_or(0, |slot| slot as u32 + 1);
        let old_word = self.winner.load(Relaxed);
        if old_word != word {
            if word != 0 {
                self.switches.fetch_add(1, Relaxed);
            }
            self.winner.store(word, Relaxed);
        }
        self.level.store(encode(level), Relaxed);
        self.contenders.store(contenders, Relaxed);
        self.bitmap.store(bitmap, Release);
        self.sequence.fetch_add(1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_page_is_idle() {
        let page = LocalPage::new();
        for index in 0..VCPUS {
            assert_eq!(page.vcpu(index).unwrap().claim(), Claim::default());
        }
        assert!(page.vcpu(VCPUS).is_none());
    }

    #[test]
    fn published_words_are_the_claim() {
        let line = VcpuLine::new();
        line.bitmap().store(1 << 9, Relaxed);
        line.arrived().fetch_or(1 << 5, Relaxed);
        line.set_running(20);
        line.set_awaited(0);
        let claim = line.claim();
        assert_eq!(claim.runnable(), 5);
        assert_eq!((claim.running, claim.awaited), (20, 0));
        line.set_running(NO_LEVEL);
        assert_eq!(line.claim().running, NO_LEVEL);
    }

    #[test]
    fn garbage_decodes_to_a_valid_claim() {
        let line = VcpuLine::new();
        for word in [u32::MAX, 65, 1 << 31, 64] {
            line.running.store(word, Relaxed);
            line.awaited.store(word, Relaxed);
            assert!(line.claim().potential() <= NO_LEVEL);
        }
    }

    #[test]
    fn a_cpu_counts_only_changes_of_its_winner() {
        // SAFETY: words of zeroes are a valid line.
        let line: CpuLine = unsafe { core::mem::zeroed() };
        line.publish(1 << 3, Some(7), 3, 2);
        line.publish(1 << 3, Some(7), 3, 2);
        line.publish(0, None, NO_LEVEL, 0);
        line.publish(1 << 3, Some(7), 3, 1);
        assert_eq!(line.switches.load(Relaxed), 2);
        assert_eq!((line.winner(), line.winning_level()), (Some(7), 3));
    }
}
