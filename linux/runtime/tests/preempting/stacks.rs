//! Polls on stacks of their own are stopped by a signal that needs no room there.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::{Level, Runtime, time};

use crate::{LIMIT, runtime, skipped, spin_until};

const PAGE: usize = 4096;

/// A stack of one page between two pages that must not be touched.
struct Small(*mut libc::c_void);

impl Small {
    fn new() -> Small {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping, of whose pages the second one is made accessible.
        unsafe {
            let pages = libc::mmap(null_mut(), 3 * PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(pages.byte_add(PAGE), PAGE, access), 0);
            Small(pages)
        }
    }

    /// Calls `f` on the stack.
    fn run(&self, f: &mut dyn FnMut()) {
        thread_local! {
            static CALL: Cell<Option<*mut dyn FnMut()>> = const { Cell::new(None) };
        }
        extern "C" fn entry() {
            if let Some(call) = CALL.take() {
                // SAFETY: `run` has the stack, and waits.
                unsafe { (*call)() };
            }
        }
        // SAFETY: only the lifetime is forgotten: the call is over when this returns.
        let f = unsafe { std::mem::transmute::<&mut dyn FnMut(), &'static mut dyn FnMut()>(f) };
        CALL.set(Some(f));
        let mut contexts = Box::new([const { MaybeUninit::<libc::ucontext_t>::zeroed() }; 2]);
        let [here, there] = &mut *contexts;
        // SAFETY: plain data; the stack is ours, and the swap fills the context that is returned
        // to.
        unsafe {
            let (here, there) = (here.as_mut_ptr(), there.as_mut_ptr());
            assert_eq!(libc::getcontext(there), 0);
            (*there).uc_stack.ss_sp = self.0.byte_add(PAGE);
            (*there).uc_stack.ss_size = PAGE;
            (*there).uc_link = here;
            libc::makecontext(there, entry, 0);
            assert_eq!(libc::swapcontext(here, there), 0);
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; nothing runs on the stack.
        unsafe { libc::munmap(self.0, 3 * PAGE) };
    }
}

// SAFETY: the type is plain memory.
unsafe impl Send for Small {}

/// Spins on the small stack until the flag is set. Returns false if it is not in time.
fn spins_on(small: &Small, flag: &AtomicBool) -> bool {
    let mut in_time = false;
    small.run(&mut || in_time = spin_until(flag));
    in_time
}

/// Polls are suspended while they are on a stack of a page: on spare threads, on the thread that
/// made the ring, and on that of `block_on`.
#[test]
fn a_poll_on_a_stack_of_4_kib_is_suspended() {
    let Some(runtime) = runtime() else { return };
    for _ in 0..5 {
        let suspended = runtime.block_on(async {
            let seen = Arc::new(AtomicBool::new(false));
            let over = seen.clone();
            // Each poll is more urgent than the one before, and stops it.
            let urgent = async move {
                let mut polls = Vec::new();
                let (mut reader, mut writer) = upshift::io::pipe().unwrap();
                for level in [40, 30, 20, 10] {
                    let flag = over.clone();
                    let long = async move { spins_on(&Small::new(), &flag) };
                    polls.push(upshift::spawn(long, Level::new(level).unwrap()));
                    for _ in 0..5 {
                        time::sleep(Duration::from_millis(1)).await;
                        writer.write_all(b"x").await.unwrap();
                        reader.read_exact(&mut [0]).await.unwrap();
                    }
                }
                over.store(true, SeqCst);
                polls
            };
            let polls = upshift::spawn(urgent, Level::at::<0>()).await.unwrap();
            let mut suspended = 0;
            for poll in polls {
                suspended += usize::from(poll.await.unwrap());
            }
            let flag = Arc::new(AtomicBool::new(false));
            let set = flag.clone();
            upshift::spawn(async move { set.store(true, SeqCst) }, Level::at::<0>()).detach();
            suspended + usize::from(spins_on(&Small::new(), &flag))
        });
        assert_eq!(suspended, 5);
    }
}

/// Without preemption, too, polls are interrupted: an idle vCPU has the ring's thread enter its
/// ring in the middle of a poll.
#[test]
fn a_poll_on_a_stack_of_4_kib_is_interrupted_for_an_idle_vcpu() {
    let runtime = Runtime::builder().vcpus(2).build().unwrap();
    for _ in 0..20 {
        let served = runtime.block_on(async {
            let (mut reader, mut writer) = upshift::io::pipe().unwrap();
            let has = Arc::new(AtomicBool::new(false));
            let set = has.clone();
            let reads = async move {
                reader.read_exact(&mut [0]).await.unwrap();
                set.store(true, SeqCst);
            };
            let reads = upshift::spawn(reads, Level::at::<10>());
            time::sleep(Duration::from_millis(2)).await;
            let fd = writer.write_all(b"").await.map(|()| writer);
            let writer = std::fs::File::from(fd.unwrap().into_owned_fd().unwrap());
            let writes = std::thread::spawn(move || {
                use std::io::Write;
                std::thread::sleep(Duration::from_millis(3));
                (&writer).write_all(b"x").unwrap();
                writer
            });
            let served = spins_on(&Small::new(), &has);
            writes.join().unwrap();
            reads.await.unwrap();
            served
        });
        assert!(served, "the byte was not fetched");
    }
}

/// The calling thread's alternate stack.
fn alternate() -> libc::stack_t {
    // SAFETY: plain data; a pointer to a local.
    unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        assert_eq!(libc::sigaltstack(null(), &raw mut stack), 0);
        stack
    }
}

/// Returns the bytes of the calling thread's alternate stack that were ever used, and its size.
fn used() -> (usize, usize) {
    let stack = alternate();
    assert_eq!(stack.ss_flags & libc::SS_DISABLE, 0, "there is one");
    let bytes = stack.ss_sp.cast::<u8>();
    // SAFETY: mapped while the thread serves. Only the thread itself writes to it, and runs
    // elsewhere now.
    let is_fresh = |&at: &usize| unsafe { bytes.add(at).read_volatile() } == 0;
    let fresh = (0..stack.ss_size).take_while(is_fresh).count();
    (stack.ss_size - fresh, stack.ss_size)
}

/// Counts the handler and the kernel's frames, also where the handler waits in the ring and is
/// interrupted there.
#[test]
fn the_handler_uses_half_of_its_stack_at_most() {
    let Some(runtime) = runtime() else { return };
    let most = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    while most.load(SeqCst) == 0 || began.elapsed() < Duration::from_secs(1) {
        runtime.block_on(async {
            let most = most.clone();
            let seen = Arc::new(AtomicBool::new(false));
            let flag = seen.clone();
            let long = async move {
                assert!(spin_until(&flag));
                let (used, of) = used();
                assert!(used <= of / 2, "{used} of {of}");
                most.fetch_max(used, SeqCst);
            };
            let long = upshift::spawn(long, Level::at::<40>());
            let urgent = async move {
                let (mut reader, mut writer) = upshift::io::pipe().unwrap();
                for _ in 0..20 {
                    time::sleep(Duration::from_micros(200)).await;
                    writer.write_all(b"x").await.unwrap();
                    reader.read_exact(&mut [0]).await.unwrap();
                }
                seen.store(true, SeqCst);
            };
            upshift::spawn(urgent, Level::at::<0>()).await.unwrap();
            long.await.unwrap();
        });
        assert!(began.elapsed() < LIMIT, "no poll was ever suspended");
    }
    println!("{} bytes", most.load(SeqCst));
}

/// The alternate stack of the program is in place again after `block_on`, and a large one stays in
/// place throughout.
#[test]
fn the_thread_of_block_on_has_its_alternate_stack_back() {
    let Some(runtime) = runtime() else { return };
    let before = alternate();
    runtime.block_on(async {
        time::sleep(Duration::from_millis(1)).await;
        assert_ne!(alternate().ss_flags & libc::SS_DISABLE, libc::SS_DISABLE);
    });
    let after = alternate();
    assert_eq!((before.ss_sp, before.ss_size), (after.ss_sp, after.ss_size));
    // A large stack of the program's own is kept.
    let mut own = vec![0u8; 256 << 10];
    let stack = libc::stack_t {
        ss_sp: own.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: own.len(),
    };
    let put = |stack: &libc::stack_t| {
        // SAFETY: the memory is there until the former one, the standard library's, is in place.
        assert_eq!(unsafe { libc::sigaltstack(stack, null_mut()) }, 0);
    };
    put(&stack);
    runtime.block_on(async {
        time::sleep(Duration::from_millis(1)).await;
        assert_eq!(alternate().ss_sp, stack.ss_sp);
    });
    assert_eq!(alternate().ss_sp, stack.ss_sp);
    put(&before);
}

/// A thread that waits in the handler takes none of the program's signals; another one does.
#[test]
fn a_signal_of_the_program_is_handled_while_polls_are_suspended() {
    static HANDLED: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn handle(_: libc::c_int) {
        HANDLED.fetch_add(1, SeqCst);
    }
    let Some(runtime) = runtime() else { return };
    // SAFETY: plain data; the handler is async-signal-safe.
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
        let seen = Arc::new(AtomicBool::new(false));
        let flag = seen.clone();
        let long = upshift::spawn(async move { spin_until(&flag) }, Level::at::<40>());
        let urgent = async move {
            time::sleep(Duration::from_millis(5)).await;
            let began = Instant::now();
            for n in 1..=20 {
                // SAFETY: no pointers.
                unsafe { libc::kill(libc::getpid(), libc::SIGUSR2) };
                while HANDLED.load(SeqCst) < n && began.elapsed() < LIMIT / 2 {
                    time::sleep(Duration::from_micros(100)).await;
                }
            }
            seen.store(true, SeqCst);
        };
        upshift::spawn(urgent, Level::at::<0>()).await.unwrap();
        assert!(long.await.unwrap());
    });
    if HANDLED.load(SeqCst) == 0 {
        return skipped(&"signals are blocked in this process");
    }
    assert_eq!(HANDLED.load(SeqCst), 20);
}
