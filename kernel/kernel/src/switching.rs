//! The switching coroutine of a hart: its poll is "run the most urgent user thread until it has to
//! give way" (SharedScheduler, section 3.3).
//!
//! It never ends. Its level equals that of the most urgent user thread (`users.rs`), so the
//! scheduler runs more urgent kernel coroutines before it and less urgent ones after it. Without a
//! thread it is at the least urgent level, and its poll waits for an interrupt.
//!
//! A thread runs until it parks itself or ends; until something more urgent is ready, kernel or
//! user; or until its quantum is over and something of its level is ready. In the first and last
//! case it goes to the tail of its level.

use alloc::boxed::Box;
use core::future::{Future, poll_fn};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use core::task::Poll;

use os_abi::number::FAULTED;
use upshift_core::Vcpu;

use crate::arch::host::KernelHost;
use crate::arch::trap::Trap;
use crate::arch::{csr, hart_index};
use crate::hart::Hart;
use crate::memory::space::{self, AddressSpace};
use crate::process::Thread;
use crate::times::KERNEL;
use crate::users::{self, Next};
use crate::{chaos, clock, executor, global, hart, interrupts, println, syscall, trace};

/// Longest time that a thread may run while another of its level waits, in microseconds.
const QUANTUM_MICROS: u64 = 5_000;

/// Returns the quantum in ticks.
pub(crate) fn quantum() -> u64 {
    clock::from_micros(QUANTUM_MICROS)
}

/// The coroutine.
pub(crate) fn run() -> impl Future<Output = ()> + Send {
    poll_fn(|_| {
        turn();
        Poll::Pending
    })
}

fn turn() {
    let index = hart_index();
    let Some(vcpu) = executor::domain().vcpus().nth(index) else {
        return;
    };
    // Masked but for the time in user mode and in system calls, so that nothing
    // comes between a last look at the queues and `sret` or `wfi`.
    let interrupts = csr::interrupts_off();
    loop {
        match users::take(index) {
            Next::Run(thread) => {
                Turn {
                    hart: hart::at(index),
                    index,
                    vcpu,
                }
                .run(thread);
            }
            Next::GiveWay => break,
            Next::Idle => {
                idle(vcpu);
                break;
            }
        }
        // The next thread runs at once, unless a coroutine of the kernel is due before it.
        if executor::has_as_urgent(vcpu) {
            break;
        }
    }
    hart::at(index).times.set(KERNEL);
    csr::interrupts_restore(interrupts);
}

/// Waits until an interrupt is pending, unless there is work.
///
/// No wake is lost: with interrupts masked, the hart is marked idle in the queue
/// of threads and announced as parked to the scheduler, which then looks at its
/// queues once more. From then on each wake sends an IPI, and `wfi` ends at once
/// if one is pending, masked or not.
fn idle(vcpu: &Vcpu<KernelHost>) {
    // Unloads the space, so that ended processes can be freed.
    space::unload();
    if vcpu.prepare_park() {
        chaos::dawdle();
        csr::wait_for_interrupt();
    }
    vcpu.unpark();
}

/// A thread on a hart.
struct Turn<'a> {
    hart: &'static Hart,
    index: usize,
    vcpu: &'a Vcpu<KernelHost>,
}

/// Puts a thread where it belongs.
type Leave = fn(Box<Thread>);

/// Fate of a thread after a trap.
enum After {
    /// The thread resumes, if nothing is more urgent.
    GoesOn(Box<Thread>),
    /// The thread is parked, or has ended.
    Gone,
}

impl Turn<'_> {
    fn run(&self, mut thread: Box<Thread>) {
        self.begin_quantum(&mut thread);
        let left = self.run_on(thread);
        self.hart.quantum_end.store(u64::MAX, Relaxed);
        // Before the thread can run elsewhere.
        users::stopped(self.index);
        if let Some((thread, leave)) = left {
            leave(thread);
        }
    }

    fn begin_quantum(&self, thread: &mut Thread) {
        thread.until = clock::now().saturating_add(chaos::quantum(thread.quantum));
        self.set_quantum_end(thread.until);
    }

    fn set_quantum_end(&self, time: u64) {
        self.hart.quantum_end.store(time, Relaxed);
        clock::rearm(self.hart);
    }

    /// Runs the thread until it has to leave, and returns its destination; `None`: it is parked or
    /// has ended.
    fn run_on(&self, mut thread: Box<Thread>) -> Option<(Box<Thread>, Leave)> {
        // An ended process has no space.
        let space = thread.process.space().ok()?;
        space::load(&space);
        loop {
            chaos::disturb();
            if thread.follow_bitmap(&space) {
                users::changed_level(self.index, &mut thread);
            }
            global::publish();
            executor::interrupt_overtaken();
            executor::share(self.index);
            // Before the last look: see `executor::interrupt_overtaken`.
            hart::enters_user(self.index);
            fence(SeqCst);
            chaos::dawdle();
            if let Some(leave) = self.must_leave(&mut thread, &space) {
                hart::takes_from_user(self.index);
                return Some((thread, leave));
            }
            thread.deliver_interrupt(&space);
            trace::enters(&thread, &space);
            let trap = thread.context.run();
            hart::takes_from_user(self.index);
            trace::leaves(&thread, &space, trap.suspends());
            match self.after(trap, thread, &space) {
                After::GoesOn(same) => thread = same,
                After::Gone => return None,
            }
        }
    }

    /// Returns the destination of a thread that may not return to user mode.
    fn must_leave(&self, thread: &mut Thread, space: &AddressSpace) -> Option<Leave> {
        if thread.process.is_ended() {
            return Some(drop);
        }
        if thread.process.is_held() && !thread.goes_on_for_now(space) {
            thread.end_grace(space);
            return Some(|thread| {
                let process = thread.process.clone();
                process.hold(thread);
            });
        }
        let level = thread.level;
        let over = clock::now() >= thread.until;
        let leave: Leave = if over {
            let of_level = self.vcpu.bitmap() & level.bit() != 0;
            let kernel_waits = of_level || executor::has_more_urgent(level);
            if !kernel_waits && !users::is_overtaken(level, true) {
                // Without a waiter the thread gets another quantum.
                thread.quantum = quantum();
                thread.end_grace(space);
                self.begin_quantum(thread);
                return None;
            }
            users::push_back
        } else if executor::has_more_urgent(level)
            || users::is_overtaken(level, false)
            || chaos::one_in(8)
        {
            users::push_front
        } else {
            if thread.grace != 0 {
                // The coroutine to give way to is gone.
                thread.end_grace(space);
                self.set_quantum_end(thread.until);
            }
            return None;
        };
        if thread.is_in_grace(space) {
            self.set_quantum_end(thread.grace);
            return None;
        }
        thread.end_grace(space);
        thread.quantum = if over {
            quantum()
        } else {
            thread.until.saturating_sub(clock::now())
        };
        Some(leave)
    }

    fn after(&self, trap: Trap, mut thread: Box<Thread>, space: &AddressSpace) -> After {
        match trap {
            Trap::Interrupt(code) => {
                interrupts::serve(code);
                After::GoesOn(thread)
            }
            Trap::SystemCall => {
                // The call is as urgent as the coroutine that makes it.
                if thread.follow_bitmap(space) {
                    users::changed_level(self.index, &mut thread);
                }
                csr::interrupts_restore(true);
                let after = syscall::dispatch(thread);
                csr::interrupts_off();
                match after {
                    Some(thread) => After::GoesOn(thread),
                    None => After::Gone,
                }
            }
            Trap::Fault(fault) if thread.context.enable_float(fault) => After::GoesOn(thread),
            Trap::Fault(fault) if thread.is_mapped_meanwhile(fault, space) => After::GoesOn(thread),
            Trap::Fault(fault) => {
                println!(
                    "process {}: exception {} at {:#x}, about {:#x}",
                    thread.process.number(),
                    fault.cause,
                    fault.pc,
                    fault.value
                );
                thread.process.end(FAULTED, thread.level);
                After::Gone
            }
        }
    }
}

/// Makes the harts that run programs reconsider their choice of thread.
pub(crate) fn interrupt_programs() {
    for index in 0..hart::online().len() {
        if hart::takes_from_user(index) {
            hart::interrupt(index);
        }
    }
}
