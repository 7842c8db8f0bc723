//! Runs user programs on a hart, in the *switching coroutine* of the hart. Each poll of this
//! coroutine runs the most urgent user thread until it has to give way (SharedScheduler, section
//! 3.3).
//!
//! The coroutine never ends. Its level equals that of the most urgent user thread (`run_queue.rs`),
//! so the scheduler runs more urgent kernel coroutines before it and less urgent ones after it.
//! Without a thread it has the least urgent level, and its poll waits for an interrupt.
//!
//! A thread runs until it parks itself or ends, until more urgent work is ready (in the kernel or
//! in a program), or until its quantum has passed while other work of its level is ready. In the
//! last case it goes to the tail of its level.

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
use crate::run_queue::{self, Next};
use crate::times::KERNEL;
use crate::{chaos, clock, executor, global, hart, interrupts, println, syscall, trace};

/// Maximum time for which a thread may run while another of its level waits, in microseconds.
const QUANTUM_MICROS: u64 = 5_000;

pub(crate) fn quantum() -> u64 {
    clock::from_micros(QUANTUM_MICROS)
}

/// Returns the switching coroutine of a hart.
pub(crate) fn run() -> impl Future<Output = ()> + Send {
    poll_fn(|_| {
        poll_switching();
        Poll::Pending
    })
}

fn poll_switching() {
    let index = hart_index();
    let Some(vcpu) = executor::domain().vcpus().nth(index) else {
        return;
    };
    // Interrupts are masked except in user mode and in system calls, so that no interrupt occurs
    // between the last check of the queues and `sret` or `wfi`.
    let interrupts = csr::interrupts_off();
    loop {
        match run_queue::take(index) {
            Next::Run(thread) => {
                ThreadRunner {
                    hart: hart::at(index),
                    index,
                    vcpu,
                }
                .run(thread);
            }
            Next::Yield => break,
            Next::Idle => {
                idle(vcpu);
                break;
            }
        }
        // The next thread runs immediately, unless a kernel coroutine precedes it.
        if executor::has_as_urgent(vcpu) {
            break;
        }
    }
    hart::at(index).times.set(KERNEL);
    csr::interrupts_restore(interrupts);
}

/// Waits until an interrupt is pending, unless there is work.
///
/// No wake is lost. With interrupts masked, the hart has marked itself as idle in the run queue,
/// and announces to the scheduler that it is parked; the scheduler then checks its queues once
/// more. From then on each wake sends an IPI, and `wfi` ends at once if an interrupt is pending,
/// even if the interrupt is masked.
fn idle(vcpu: &Vcpu<KernelHost>) {
    // Unloads the space, so that ended processes can be freed.
    space::unload();
    if vcpu.prepare_park() {
        chaos::delay();
        csr::wait_for_interrupt();
    }
    vcpu.unpark();
}

struct ThreadRunner<'a> {
    hart: &'static Hart,
    index: usize,
    vcpu: &'a Vcpu<KernelHost>,
}

/// Function that takes a thread that leaves the hart.
type Destination = fn(Box<Thread>);

enum AfterTrap {
    /// The thread resumes, unless more urgent work is ready.
    Resume(Box<Thread>),
    /// The thread is parked, or has ended.
    Left,
}

impl ThreadRunner<'_> {
    fn run(&self, mut thread: Box<Thread>) {
        self.begin_quantum(&mut thread);
        let left = self.run_until_leave(thread);
        self.hart.quantum_end.store(u64::MAX, Relaxed);
        // Clear the entry before the thread can run on another hart.
        run_queue::clear_running(self.index);
        if let Some((thread, destination)) = left {
            destination(thread);
        }
    }

    fn begin_quantum(&self, thread: &mut Thread) {
        thread.quantum_end = clock::now().saturating_add(chaos::quantum(thread.quantum_left));
        self.set_quantum_end(thread.quantum_end);
    }

    fn set_quantum_end(&self, time: u64) {
        self.hart.quantum_end.store(time, Relaxed);
        clock::rearm(self.hart);
    }

    /// Runs the thread until it must leave, and returns it with its destination; `None` if it is
    /// parked or has ended.
    fn run_until_leave(&self, mut thread: Box<Thread>) -> Option<(Box<Thread>, Destination)> {
        // An ended process has no space.
        let space = thread.process.space().ok()?;
        space::load(&space);
        loop {
            chaos::disturb();
            if thread.follow_bitmap(&space) {
                run_queue::update_running_level(self.index, &mut thread);
            }
            global::publish();
            executor::interrupt_overtaken();
            executor::announce_waiting(self.index);
            // The bit is set before the last check: see `executor::interrupt_overtaken`.
            hart::set_in_user(self.index);
            fence(SeqCst);
            chaos::delay();
            if let Some(destination) = self.must_leave(&mut thread, &space) {
                hart::clear_in_user(self.index);
                return Some((thread, destination));
            }
            thread.deliver_interrupt(&space);
            trace::enter_user(&thread, &space);
            let trap = thread.context.run();
            hart::clear_in_user(self.index);
            trace::leave_user(&thread, &space, trap.trace_state());
            match self.handle_trap(trap, thread, &space) {
                AfterTrap::Resume(resumed) => thread = resumed,
                AfterTrap::Left => return None,
            }
        }
    }

    /// Returns the destination of a thread that may not return to user mode; `None` if it may.
    fn must_leave(&self, thread: &mut Thread, space: &AddressSpace) -> Option<Destination> {
        if thread.process.is_ended() {
            return Some(drop);
        }
        if thread.process.is_held() && !thread.must_finish_critical_section(space) {
            thread.end_grace(space);
            return Some(|thread| {
                let process = thread.process.clone();
                process.hold(thread);
            });
        }
        let level = thread.level;
        let is_quantum_over = clock::now() >= thread.quantum_end;
        let destination: Destination = if is_quantum_over {
            let has_equal = self.vcpu.bitmap() & level.bit() != 0;
            let kernel_waits = has_equal || executor::has_more_urgent(level);
            if !kernel_waits && !run_queue::is_overtaken(level, true) {
                // Without a waiter the thread gets another quantum.
                thread.quantum_left = quantum();
                thread.end_grace(space);
                self.begin_quantum(thread);
                return None;
            }
            run_queue::push_back
        } else if executor::has_more_urgent(level)
            || run_queue::is_overtaken(level, false)
            || chaos::one_in(8)
        {
            run_queue::push_front
        } else {
            if thread.grace_end != 0 {
                // The work for which the thread should have left is no longer ready.
                thread.end_grace(space);
                self.set_quantum_end(thread.quantum_end);
            }
            return None;
        };
        if thread.is_in_grace(space) {
            self.set_quantum_end(thread.grace_end);
            return None;
        }
        thread.end_grace(space);
        thread.quantum_left = if is_quantum_over {
            quantum()
        } else {
            thread.quantum_end.saturating_sub(clock::now())
        };
        Some(destination)
    }

    fn handle_trap(&self, trap: Trap, mut thread: Box<Thread>, space: &AddressSpace) -> AfterTrap {
        match trap {
            Trap::Interrupt(code) => {
                interrupts::serve(code);
                AfterTrap::Resume(thread)
            }
            Trap::SystemCall => {
                // The call has the level of the coroutine that makes it.
                if thread.follow_bitmap(space) {
                    run_queue::update_running_level(self.index, &mut thread);
                }
                csr::interrupts_restore(true);
                let after = syscall::dispatch(thread);
                csr::interrupts_off();
                match after {
                    Some(thread) => AfterTrap::Resume(thread),
                    None => AfterTrap::Left,
                }
            }
            Trap::Fault(fault) if thread.context.enable_float(fault) => AfterTrap::Resume(thread),
            Trap::Fault(fault) if thread.is_spurious_fault(fault, space) => {
                AfterTrap::Resume(thread)
            }
            Trap::Fault(fault) => {
                println!(
                    "process {}: exception {} at {:#x}, stval {:#x}",
                    thread.process.number(),
                    fault.cause,
                    fault.pc,
                    fault.value
                );
                thread.process.end(FAULTED, thread.level);
                AfterTrap::Left
            }
        }
    }
}

/// Makes the harts that run programs choose their threads again.
pub(crate) fn interrupt_programs() {
    for index in 0..hart::online().len() {
        if hart::clear_in_user(index) {
            hart::interrupt(index);
        }
    }
}
