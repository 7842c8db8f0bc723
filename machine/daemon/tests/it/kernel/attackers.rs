//! Children that attack through the kernel.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use upshift_board::layout::LOCAL_BYTES;
use upshift_board::wire::Role;
use upshift_board::{NO_LEVEL, os};
use upshift_elevate::current_tid;

use crate::budgets::attackers::burn_until;
use crate::child::{cpu_time, number, pin, setting, wait_for_go};
use crate::client::{Registration, connect, register, worker};
use crate::process::monotonic;

/// Bytes of the kernel's large pages.
const LARGE: usize = 2 << 20;

/// Creates a valid local page, mapped where a large page may be. Returns its file and address.
fn page_for_a_large_one() -> (std::os::fd::OwnedFd, *mut libc::c_void) {
    let file = os::memory_file("collapses", LOCAL_BYTES).unwrap();
    // SAFETY: address space for two large pages, and a mapping within it.
    let address = unsafe {
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let none = std::ptr::null_mut();
        let space = libc::mmap(none, 2 * LARGE, libc::PROT_NONE, private, -1, 0);
        assert_ne!(space, libc::MAP_FAILED);
        let aligned = (space as usize).next_multiple_of(LARGE);
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let shared = libc::MAP_SHARED | libc::MAP_FIXED;
        libc::mmap(aligned as *mut _, LARGE, both, shared, file.as_raw_fd(), 0)
    };
    assert_ne!(address, libc::MAP_FAILED);
    // SAFETY: the first page of the mapping is there.
    unsafe { address.cast::<u8>().write_volatile(0) };
    rustix::fs::fcntl_add_seals(&file, os::LOCAL_SEALS).unwrap();
    (file, address)
}

/// Registers its main thread, which spins; another thread on CPU `CALLER` makes all calls that move
/// memory on pages that the daemon reads, and registers new ones all the time.
pub(crate) fn collapser() {
    let path = PathBuf::from(setting("SOCKET"));
    let cpu = number("CPU") as usize;
    pin(cpu);
    let own = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    let calls = std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            pin(number("CALLER") as usize);
            let (mut pages, mut times, mut collapsed) = (0u64, 0u64, 0u64);
            while monotonic() < deadline {
                let (file, address) = page_for_a_large_one();
                let connection = connect(&path);
                let registered = register(&connection, &[cpu as u32], &[], &file);
                pages += u64::from(registered.is_ok());
                let end = (monotonic() + 100_000_000).min(deadline);
                while monotonic() < end {
                    times += 1;
                    collapsed += u64::from(move_about(file.as_fd().as_raw_fd(), address));
                }
                // SAFETY: the mapping above.
                unsafe { libc::munmap(address, LARGE) };
            }
            format!(
                "{times} times on {pages} pages that the daemon reads, collapsed {collapsed} times"
            )
        });
        burn_until(deadline);
        caller.join().unwrap()
    });
    println!("calls {calls}");
    own.run(NO_LEVEL);
    wait_for_go();
}

/// Makes each call that may move, drop or fault the memory of a file. Returns whether the kernel
/// made a large page of it.
fn move_about(file: i32, address: *mut libc::c_void) -> bool {
    const COLLAPSE: i32 = 25;
    const POPULATE_READ: i32 = 22;
    // SAFETY: calls on this process's own mapping, which stays at its address; its contents do not
    // matter.
    unsafe {
        for mode in [
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            libc::FALLOC_FL_ZERO_RANGE,
            libc::FALLOC_FL_COLLAPSE_RANGE,
            libc::FALLOC_FL_KEEP_SIZE,
            0,
        ] {
            libc::fallocate(file, mode, 0, 4096);
        }
        let collapsed = libc::madvise(address, LARGE, COLLAPSE) == 0;
        for advice in [
            libc::MADV_REMOVE,
            libc::MADV_PAGEOUT,
            libc::MADV_COLD,
            libc::MADV_FREE,
            libc::MADV_DONTNEED,
            POPULATE_READ,
        ] {
            libc::madvise(address, 4096, advice);
        }
        let none = std::ptr::null_mut();
        let space = libc::PROT_NONE;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let elsewhere = libc::mmap(none, LARGE, space, private, -1, 0);
        let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        if libc::mremap(address, LARGE, LARGE, fixed, elsewhere) == elsewhere {
            libc::mremap(elsewhere, LARGE, LARGE, fixed, address);
        }
        libc::mprotect(address, 4096, libc::PROT_NONE);
        libc::mprotect(address, LARGE, libc::PROT_READ);
        libc::msync(address, 4096, libc::MS_SYNC | libc::MS_INVALIDATE);
        libc::mlock(address, 4096);
        libc::munlock(address, 4096);
        collapsed
    }
}

/// Runs threads that compute on `CPU`, unregistered, and two on CPU `CALLER` that move them there
/// and back, and change their policies, as fast as possible.
pub(crate) fn jostler() {
    let (cpu, caller) = (number("CPU") as usize, number("CALLER") as usize);
    println!("ready");
    let deadline = wait_for_go();
    let calls = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        for _ in 0..16 {
            let sender = sender.clone();
            scope.spawn(move || {
                sender.send(current_tid()).unwrap();
                drop(sender);
                pin(cpu);
                burn_until(deadline);
            });
        }
        drop(sender);
        let threads: Vec<i32> = receiver.iter().collect();
        for offset in 0..2 {
            let (calls, threads) = (&calls, threads.clone());
            scope.spawn(move || {
                pin(caller);
                let mut turn = offset;
                while monotonic() < deadline {
                    for &tid in &threads {
                        jostle(tid, [cpu, caller][turn % 2], turn);
                        calls.fetch_add(1, Relaxed);
                    }
                    turn += 1;
                }
            });
        }
    });
    println!("calls {}", calls.into_inner());
    wait_for_go();
}

/// Moves a thread to `cpu`, and changes its policy, both by `turn`.
fn jostle(tid: i32, cpu: usize, turn: usize) {
    use upshift_elevate::sys::{CpuSet, Kernel, SchedAttr, Sys};
    let _ = Kernel.sched_setaffinity(tid, &CpuSet::only(cpu).unwrap());
    let policies = [libc::SCHED_OTHER, libc::SCHED_BATCH];
    let attr = SchedAttr {
        policy: policies[turn / 2 % 2] as u32,
        nice: 19,
        ..SchedAttr::normal()
    };
    let _ = Kernel.sched_setattr(tid, &attr);
}

/// Forks a child with one thread, which registers, enters user and other namespaces of its own,
/// becomes one that dumps no core, and spins.
pub(crate) fn emigrant() {
    // SAFETY: the only other thread of this process waits for this one to end, so it holds no lock.
    let child = unsafe { libc::fork() };
    if child > 0 {
        wait_for_go();
        let mut status = 0;
        // SAFETY: a child that has not been waited for.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        return;
    }
    // SAFETY: a plain call.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let cpu = number("CPU");
    pin(cpu as usize);
    let connection = connect(&PathBuf::from(setting("SOCKET")));
    let (file, page) = os::local_page().unwrap();
    let bells = register(&connection, &[cpu as u32], &[worker(current_tid())], &file).unwrap();
    println!("ready");
    println!("pid {}", current_tid());
    page.vcpu(0).unwrap().set_running(number("LEVEL") as u8);
    os::ring(&bells[1]).unwrap();
    let end = monotonic() + 1_400_000_000;
    // SAFETY: plain calls, in a process with one thread.
    let went = unsafe {
        let user = libc::unshare(libc::CLONE_NEWUSER) == 0;
        let others = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWCGROUP;
        let more = libc::unshare(others) == 0;
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        (user, more)
    };
    let before = cpu_time();
    burn_until(end);
    println!("used {}", (cpu_time() - before) / 1000);
    println!("went {went:?}");
    std::process::exit(0);
}
