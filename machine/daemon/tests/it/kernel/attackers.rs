//! Child processes that attack the daemon by system calls.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use upshift_board::layout::LOCAL_BYTES;
use upshift_board::wire::Role;
use upshift_board::{NO_LEVEL, os};
use upshift_elevate::current_tid;

use crate::budgets::attackers::spin_until;
use crate::child::{cpu_time, number, pin, setting, wait_for_parent};
use crate::client::{Registration, connect, register, worker};
use crate::process::monotonic;

const HUGE_PAGE: usize = 2 << 20;

/// Creates a valid local page, mapped in a range that the kernel may turn into a huge page. Returns
/// its file and address.
fn page_in_huge_page_range() -> (std::os::fd::OwnedFd, *mut libc::c_void) {
    let file = os::memory_file("collapses", LOCAL_BYTES).unwrap();
    // SAFETY: the fixed mapping is within the address range that was reserved for two huge pages.
    let address = unsafe {
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let null = std::ptr::null_mut();
        let space = libc::mmap(null, 2 * HUGE_PAGE, libc::PROT_NONE, private, -1, 0);
        assert_ne!(space, libc::MAP_FAILED);
        let aligned = (space as usize).next_multiple_of(HUGE_PAGE);
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let shared = libc::MAP_SHARED | libc::MAP_FIXED;
        libc::mmap(
            aligned as *mut _,
            HUGE_PAGE,
            read_write,
            shared,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(address, libc::MAP_FAILED);
    // SAFETY: the file covers the first page of the mapping.
    unsafe { address.cast::<u8>().write_volatile(0) };
    rustix::fs::fcntl_add_seals(&file, os::LOCAL_SEALS).unwrap();
    (file, address)
}

/// Registers its main thread, which spins. Another thread, on CPU `CALLER`, constantly registers
/// new pages, and makes all system calls that may move the memory of these pages while the daemon
/// reads them.
pub(crate) fn page_mover() {
    let path = PathBuf::from(setting("SOCKET"));
    let cpu = number("CPU") as usize;
    pin(cpu);
    let registration = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_parent();
    let calls = std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            pin(number("CALLER") as usize);
            let (mut pages, mut times, mut collapsed) = (0u64, 0u64, 0u64);
            while monotonic() < deadline {
                let (file, address) = page_in_huge_page_range();
                let connection = connect(&path);
                let registered = register(&connection, &[cpu as u32], &[], &file);
                pages += u64::from(registered.is_ok());
                let end = (monotonic() + 100_000_000).min(deadline);
                while monotonic() < end {
                    times += 1;
                    collapsed += u64::from(move_memory(file.as_fd().as_raw_fd(), address));
                }
                // SAFETY: `address` is the mapping that was created above.
                unsafe { libc::munmap(address, HUGE_PAGE) };
            }
            format!("{times} times on {pages} pages that the daemon reads, {collapsed} huge pages")
        });
        spin_until(deadline);
        caller.join().unwrap()
    });
    println!("calls {calls}");
    registration.run(NO_LEVEL);
    wait_for_parent();
}

/// Makes each system call that may move, drop or fault the memory of a file. Returns whether the
/// kernel has created a huge page.
fn move_memory(file: i32, address: *mut libc::c_void) -> bool {
    const COLLAPSE: i32 = 25;
    const POPULATE_READ: i32 = 22;
    // SAFETY: the calls affect only this process's mapping at `address`. The mapping is at this
    // address again afterwards, and nothing uses its contents.
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
        let collapsed = libc::madvise(address, HUGE_PAGE, COLLAPSE) == 0;
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
        let null = std::ptr::null_mut();
        let space = libc::PROT_NONE;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let elsewhere = libc::mmap(null, HUGE_PAGE, space, private, -1, 0);
        let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        if libc::mremap(address, HUGE_PAGE, HUGE_PAGE, fixed, elsewhere) == elsewhere {
            libc::mremap(elsewhere, HUGE_PAGE, HUGE_PAGE, fixed, address);
        }
        libc::mprotect(address, 4096, libc::PROT_NONE);
        libc::mprotect(address, HUGE_PAGE, libc::PROT_READ);
        libc::msync(address, 4096, libc::MS_SYNC | libc::MS_INVALIDATE);
        libc::mlock(address, 4096);
        libc::munlock(address, 4096);
        collapsed
    }
}

/// Runs unregistered threads that compute on `CPU`. Two threads on CPU `CALLER` move them to that
/// CPU and back, and change their policies, as fast as possible.
pub(crate) fn thread_mover() {
    let (cpu, caller) = (number("CPU") as usize, number("CALLER") as usize);
    println!("ready");
    let deadline = wait_for_parent();
    let calls = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        for _ in 0..16 {
            let sender = sender.clone();
            scope.spawn(move || {
                sender.send(current_tid()).unwrap();
                drop(sender);
                pin(cpu);
                spin_until(deadline);
            });
        }
        drop(sender);
        let threads: Vec<i32> = receiver.iter().collect();
        for offset in 0..2 {
            let (calls, threads) = (&calls, threads.clone());
            scope.spawn(move || {
                pin(caller);
                let mut round = offset;
                while monotonic() < deadline {
                    for &tid in &threads {
                        change_cpu_and_policy(tid, [cpu, caller][round % 2], round);
                        calls.fetch_add(1, Relaxed);
                    }
                    round += 1;
                }
            });
        }
    });
    println!("calls {}", calls.into_inner());
    wait_for_parent();
}

fn change_cpu_and_policy(tid: i32, cpu: usize, round: usize) {
    use upshift_elevate::sys::{CpuSet, Kernel, SchedAttr, Sys};
    let _ = Kernel.sched_setaffinity(tid, &CpuSet::only(cpu).unwrap());
    let policies = [libc::SCHED_OTHER, libc::SCHED_BATCH];
    let attr = SchedAttr {
        policy: policies[round / 2 % 2] as u32,
        nice: 19,
        ..SchedAttr::normal()
    };
    let _ = Kernel.sched_setattr(tid, &attr);
}

/// Forks a child with one thread, which registers, enters new user and other namespaces, clears its
/// dumpable flag, and spins.
pub(crate) fn namespace_switcher() {
    // SAFETY: the only other thread of this process waits for this thread, so it holds no lock.
    let child = unsafe { libc::fork() };
    if child > 0 {
        wait_for_parent();
        let mut status = 0;
        // SAFETY: the child has not been waited for, so its pid is not reused.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        return;
    }
    // SAFETY: the call has only integer arguments.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let cpu = number("CPU");
    pin(cpu as usize);
    let connection = connect(&PathBuf::from(setting("SOCKET")));
    let (file, page) = os::local_page().unwrap();
    let doorbells = register(&connection, &[cpu as u32], &[worker(current_tid())], &file).unwrap();
    println!("ready");
    println!("pid {}", current_tid());
    page.vcpu(0).unwrap().set_running(number("LEVEL") as u8);
    os::ring(&doorbells[1]).unwrap();
    let end = monotonic() + 1_400_000_000;
    // SAFETY: the calls have only integer arguments.
    let entered = unsafe {
        let user = libc::unshare(libc::CLONE_NEWUSER) == 0;
        let flags = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWCGROUP;
        let other = libc::unshare(flags) == 0;
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        (user, other)
    };
    let before = cpu_time();
    spin_until(end);
    println!("used {}", (cpu_time() - before) / 1000);
    println!("entered {entered:?}");
    std::process::exit(0);
}
