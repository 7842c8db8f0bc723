//! Tests that a poll which runs on its own small stack is suspended. This is possible because the
//! signal handler uses an alternate stack.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::{Level, Runtime, time};

use crate::{LIMIT, runtime, skipped, spin_until};

/// Size of a page in bytes.
const PAGE: usize = 4096;

/// A stack of one page between two inaccessible pages.
struct SmallStack(*mut libc::c_void);

impl SmallStack {
    fn new() -> SmallStack {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the mapping is new, and its second page is made accessible.
        unsafe {
            let pages = libc::mmap(null_mut(), 3 * PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(pages.byte_add(PAGE), PAGE, access), 0);
            SmallStack(pages)
        }
    }

    fn run(&self, f: &mut dyn FnMut()) {
        thread_local! {
            static CALL: Cell<Option<*mut dyn FnMut()>> = const { Cell::new(None) };
        }
        extern "C" fn entry() {
            if let Some(call) = CALL.take() {
                // SAFETY: `run` does not return before the call has ended.
                unsafe { (*call)() };
            }
        }
        // SAFETY: only the lifetime is erased. The call has ended when this function returns.
        let f = unsafe { std::mem::transmute::<&mut dyn FnMut(), &'static mut dyn FnMut()>(f) };
        CALL.set(Some(f));
        let mut contexts = Box::new([const { MaybeUninit::<libc::ucontext_t>::zeroed() }; 2]);
        let [caller, callee] = &mut *contexts;
        // SAFETY: both contexts are live, `self` owns the stack, and `swapcontext` fills the
        // context to which `entry` returns.
        unsafe {
            let (caller, callee) = (caller.as_mut_ptr(), callee.as_mut_ptr());
            assert_eq!(libc::getcontext(callee), 0);
            (*callee).uc_stack.ss_sp = self.0.byte_add(PAGE);
            (*callee).uc_stack.ss_size = PAGE;
            (*callee).uc_link = caller;
            libc::makecontext(callee, entry, 0);
            assert_eq!(libc::swapcontext(caller, callee), 0);
        }
    }
}

impl Drop for SmallStack {
    fn drop(&mut self) {
        // SAFETY: `new` has mapped the pages, and no function runs on the stack.
        unsafe { libc::munmap(self.0, 3 * PAGE) };
    }
}

// SAFETY: the mapping belongs to the process, so any thread may use and unmap it.
unsafe impl Send for SmallStack {}

/// Spins on the stack until the flag is set. Returns false if it is not set in time.
fn spin_on(stack: &SmallStack, flag: &AtomicBool) -> bool {
    let mut in_time = false;
    stack.run(&mut || in_time = spin_until(flag));
    in_time
}

/// The polls run on the runtime's spare threads (which take over while a poll is suspended), on the
/// thread that created the ring, and on the thread that called `block_on`.
#[test]
fn a_poll_on_a_stack_of_4_kib_is_suspended() {
    let Some(runtime) = runtime() else { return };
    for _ in 0..5 {
        let suspended = runtime.block_on(async {
            let done = Arc::new(AtomicBool::new(false));
            // Each poll is more urgent than the previous poll, which is suspended for it.
            let urgent = async move {
                let mut handles = Vec::new();
                let (mut reader, mut writer) = upshift::io::pipe().unwrap();
                for level in [40, 30, 20, 10] {
                    let done_in_poll = done.clone();
                    let long_poll = async move { spin_on(&SmallStack::new(), &done_in_poll) };
                    handles.push(upshift::spawn(long_poll, Level::new(level).unwrap()));
                    for _ in 0..5 {
                        time::sleep(Duration::from_millis(1)).await;
                        writer.write_all(b"x").await.unwrap();
                        reader.read_exact(&mut [0]).await.unwrap();
                    }
                }
                done.store(true, SeqCst);
                handles
            };
            let handles = upshift::spawn(urgent, Level::at::<0>()).await.unwrap();
            let mut suspended = 0;
            for handle in handles {
                suspended += usize::from(handle.await.unwrap());
            }
            let flag = Arc::new(AtomicBool::new(false));
            let setter = flag.clone();
            upshift::spawn(async move { setter.store(true, SeqCst) }, Level::at::<0>()).detach();
            suspended + usize::from(spin_on(&SmallStack::new(), &flag))
        });
        assert_eq!(suspended, 5);
    }
}

/// Without preemption, polls are interrupted, too: an idle vCPU makes the thread that created the
/// busy vCPU's ring enter that ring in the middle of a poll.
#[test]
fn a_poll_on_a_stack_of_4_kib_is_interrupted_for_an_idle_vcpu() {
    let runtime = Runtime::builder().vcpus(2).build().unwrap();
    for _ in 0..20 {
        let in_time = runtime.block_on(async {
            let (mut reader, mut writer) = upshift::io::pipe().unwrap();
            let has_byte = Arc::new(AtomicBool::new(false));
            let setter = has_byte.clone();
            let reader_task = async move {
                reader.read_exact(&mut [0]).await.unwrap();
                setter.store(true, SeqCst);
            };
            let reader_task = upshift::spawn(reader_task, Level::at::<10>());
            time::sleep(Duration::from_millis(2)).await;
            writer.write_all(b"").await.unwrap();
            let writer = std::fs::File::from(writer.into_owned_fd().unwrap());
            let writer_thread = std::thread::spawn(move || {
                use std::io::Write;
                std::thread::sleep(Duration::from_millis(3));
                (&writer).write_all(b"x").unwrap();
                writer
            });
            let in_time = spin_on(&SmallStack::new(), &has_byte);
            writer_thread.join().unwrap();
            reader_task.await.unwrap();
            in_time
        });
        assert!(in_time, "the byte was not received during the poll");
    }
}

fn alternate_stack() -> libc::stack_t {
    // SAFETY: zeroes are a valid `stack_t`, and the pointer is to a local.
    unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        assert_eq!(libc::sigaltstack(null(), &raw mut stack), 0);
        stack
    }
}

/// Returns the number of bytes of the calling thread's alternate stack that have been used so far,
/// and its size.
fn stack_usage() -> (usize, usize) {
    let stack = alternate_stack();
    assert_eq!(
        stack.ss_flags & libc::SS_DISABLE,
        0,
        "the thread has no alternate stack"
    );
    let bytes = stack.ss_sp.cast::<u8>();
    // SAFETY: the stack is mapped while the thread runs the runtime, and only the thread's own
    // handlers write to it.
    let is_unused = |&offset: &usize| unsafe { bytes.add(offset).read_volatile() } == 0;
    let unused = (0..stack.ss_size).take_while(is_unused).count();
    (stack.ss_size - unused, stack.ss_size)
}

/// The usage includes the handler and the kernel's frames, even if the handler waits in
/// `io_uring_enter` and is interrupted there.
#[test]
fn the_handler_uses_half_of_its_stack_at_most() {
    let Some(runtime) = runtime() else { return };
    let max_usage = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    while max_usage.load(SeqCst) == 0 || began.elapsed() < Duration::from_secs(1) {
        runtime.block_on(async {
            let max_usage = max_usage.clone();
            let stop = Arc::new(AtomicBool::new(false));
            let flag = stop.clone();
            let long = async move {
                assert!(spin_until(&flag));
                let (usage, size) = stack_usage();
                assert!(usage <= size / 2, "{usage} of {size} bytes");
                max_usage.fetch_max(usage, SeqCst);
            };
            let long = upshift::spawn(long, Level::at::<40>());
            let urgent = async move {
                let (mut reader, mut writer) = upshift::io::pipe().unwrap();
                for _ in 0..20 {
                    time::sleep(Duration::from_micros(200)).await;
                    writer.write_all(b"x").await.unwrap();
                    reader.read_exact(&mut [0]).await.unwrap();
                }
                stop.store(true, SeqCst);
            };
            upshift::spawn(urgent, Level::at::<0>()).await.unwrap();
            long.await.unwrap();
        });
        assert!(began.elapsed() < LIMIT, "no poll was suspended");
    }
    println!("{} bytes used at most", max_usage.load(SeqCst));
}

/// After `block_on`, the thread has its former alternate stack. A large alternate stack of the
/// program stays installed throughout.
#[test]
fn block_on_restores_the_alternate_stack_of_its_thread() {
    let Some(runtime) = runtime() else { return };
    let before = alternate_stack();
    runtime.block_on(async {
        time::sleep(Duration::from_millis(1)).await;
        assert_ne!(
            alternate_stack().ss_flags & libc::SS_DISABLE,
            libc::SS_DISABLE
        );
    });
    let after = alternate_stack();
    assert_eq!((before.ss_sp, before.ss_size), (after.ss_sp, after.ss_size));
    // The runtime keeps a large alternate stack of the program.
    let mut program_stack = vec![0u8; 256 << 10];
    let stack = libc::stack_t {
        ss_sp: program_stack.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: program_stack.len(),
    };
    let install = |stack: &libc::stack_t| {
        // SAFETY: the memory lives until the former stack has been installed again.
        assert_eq!(unsafe { libc::sigaltstack(stack, null_mut()) }, 0);
    };
    install(&stack);
    runtime.block_on(async {
        time::sleep(Duration::from_millis(1)).await;
        assert_eq!(alternate_stack().ss_sp, stack.ss_sp);
    });
    assert_eq!(alternate_stack().ss_sp, stack.ss_sp);
    install(&before);
}

/// A thread that waits in the handler handles no signals of the program, so another thread handles
/// them.
#[test]
fn a_signal_of_the_program_is_handled_while_polls_are_suspended() {
    static HANDLED: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn handle(_: libc::c_int) {
        HANDLED.fetch_add(1, SeqCst);
    }
    let Some(runtime) = runtime() else { return };
    // SAFETY: zeroes are a valid `sigaction`, and the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGUSR2, &raw const action, null_mut()),
            0
        );
    }
    runtime.block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let long = upshift::spawn(async move { spin_until(&flag) }, Level::at::<40>());
        let urgent = async move {
            time::sleep(Duration::from_millis(5)).await;
            let began = Instant::now();
            for n in 1..=20 {
                // SAFETY: `kill` takes no pointer.
                unsafe { libc::kill(libc::getpid(), libc::SIGUSR2) };
                while HANDLED.load(SeqCst) < n && began.elapsed() < LIMIT / 2 {
                    time::sleep(Duration::from_micros(100)).await;
                }
            }
            stop.store(true, SeqCst);
        };
        upshift::spawn(urgent, Level::at::<0>()).await.unwrap();
        assert!(long.await.unwrap());
    });
    if HANDLED.load(SeqCst) == 0 {
        return skipped(&"signals are blocked in this process");
    }
    assert_eq!(HANDLED.load(SeqCst), 20);
}
