//! What hostile children do, and the bystander that measures what they take.
//!
//! Each is bounded as every child is, and by a deadline of its own.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use upshift_board::os::{self, Mapping};
use upshift_board::wire::{Role, Thread};
use upshift_board::{LocalPage, NOTHING};
use upshift_elevate::current_tid;
use upshift_elevate::sys::{CpuSet, Linux, Sys};

use crate::child::{cpu_time, number, pin, setting, wait_for_go};
use crate::process::monotonic;
use crate::protocol::{connect, register};

/// A registration made by hand.
pub(crate) struct Foothold {
    _socket: OwnedFd,
    pub(crate) page: Mapping<LocalPage>,
    pub(crate) bells: Vec<OwnedFd>,
}

impl Foothold {
    /// Registers `threads` as those of vCPU 0 on `CPU`, running at `LEVEL`.
    pub(crate) fn new(threads: &[(i32, Role)]) -> Foothold {
        let socket = connect(&PathBuf::from(setting("SOCKET")));
        let (file, page) = os::local_page().unwrap();
        let threads: Vec<Thread> = threads
            .iter()
            .map(|&(tid, role)| Thread { tid, vcpu: 0, role })
            .collect();
        let cpu = number("CPU") as u32;
        let mut bells = register(&socket, &[cpu], &threads, &file).unwrap();
        bells.remove(0);
        let it = Foothold {
            _socket: socket,
            page,
            bells,
        };
        it.run(number("LEVEL") as u8);
        it
    }

    /// Says that it runs something of `level`.
    pub(crate) fn run(&self, level: u8) {
        self.page.vcpu(0).unwrap().set_running(level);
        os::ring(&self.bells[0]).unwrap();
    }
}

/// Burns on `CPU` until the deadline: how much of it it got, and the longest time without, both in µs.
pub(crate) fn gap() {
    pin(number("CPU") as usize);
    println!("ready");
    let deadline = wait_for_go();
    let before = cpu_time();
    let (mut last, mut longest) = (monotonic(), 0);
    while last < deadline {
        let now = monotonic();
        longest = longest.max(now - last);
        last = now;
    }
    println!("used {}", (cpu_time() - before) / 1000);
    println!("longest {}", longest / 1000);
    wait_for_go();
}

/// Claims to run at `LEVEL` on `CPU`, without a thread.
pub(crate) fn ghost() {
    let it = Foothold::new(&[]);
    println!("ready");
    wait_for_go();
    it.run(NOTHING);
}

/// Registers its main thread, which then waits for a lock that a thread of its own holds and burns on `VICTIM` CPU, until the
/// deadline: the kernel lends the one's priority to the other.
pub(crate) fn lender() {
    pin(number("CPU") as usize);
    let role = match setting("ROLE").as_str() {
        "dispatcher" => Role::Dispatcher,
        _ => Role::Worker,
    };
    let _it = Foothold::new(&[(current_tid(), role)]);
    println!("ready");
    let deadline = wait_for_go();
    let lock = AtomicU32::new(0);
    let futex = |operation: i32| {
        // SAFETY: a live word, and no time limit.
        unsafe {
            let none = std::ptr::null::<libc::timespec>();
            libc::syscall(libc::SYS_futex, lock.as_ptr(), operation, 0, none)
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            Linux
                .sched_setaffinity(0, &CpuSet::only(number("VICTIM") as usize).unwrap())
                .unwrap();
            lock.store(current_tid() as u32, Release);
            let before = cpu_time();
            while monotonic() < deadline {
                std::hint::spin_loop();
            }
            println!("used {}", (cpu_time() - before) / 1000);
            futex(libc::FUTEX_UNLOCK_PI | libc::FUTEX_PRIVATE_FLAG);
        });
        while lock.load(Acquire) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        futex(libc::FUTEX_LOCK_PI | libc::FUTEX_PRIVATE_FLAG);
    });
    wait_for_go();
}
