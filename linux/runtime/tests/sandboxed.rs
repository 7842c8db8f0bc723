//! A process forbids a system call that its runtime, built before, relies on.

#[path = "support/child.rs"]
mod child;

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use child::child;
use upshift::{Level, Runtime, time};

/// Set in the process in which the body of a test runs.
const INSIDE: &str = "UPSHIFT_SANDBOXED";

/// Has `membarrier` answer EPERM, on all threads. False: this process may not have such a filter.
fn forbid_membarrier() -> bool {
    let (load, equals, answer) = (0x20, 0x15, 0x06);
    let number = libc::SYS_membarrier as u32;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut steps = [
        step(load, 0, 0),
        step(equals, 1, number),
        step(answer, 0, refuse),
        step(answer, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    let (mode, flags) = (
        libc::SECCOMP_SET_MODE_FILTER,
        libc::SECCOMP_FILTER_FLAG_TSYNC,
    );
    // SAFETY: a program of the length given, in locals.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter) == 0
    }
}

/// A vCPU that steals has to end the bias of the other one's lock, for which there is no other
/// barrier.
#[test]
fn a_process_that_forbids_membarrier_later_ends_with_a_message_that_names_it() {
    if std::env::var_os(INSIDE).is_some() {
        return forbids_membarrier_and_goes_on();
    }
    let name = "a_process_that_forbids_membarrier_later_ends_with_a_message_that_names_it";
    let output = child(name).env(INSIDE, "1").output().unwrap();
    let (status, said) = (output.status, String::from_utf8(output.stderr).unwrap());
    if said.contains("skipped: ") {
        return println!("{said}");
    }
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}: {said}");
    let names_it = |line: &str| line.starts_with("upshift: ") && line.contains("membarrier");
    assert!(said.lines().any(names_it), "{said}");
}

fn forbids_membarrier_and_goes_on() {
    // SAFETY: no pointers. A process that hangs is ended.
    unsafe { libc::alarm(60) };
    let runtime = Runtime::builder().vcpus(2).build().unwrap();
    let handle = runtime.handle();
    runtime.block_on(async move {
        for _ in 0..6000 {
            upshift::spawn(async { upshift::yield_now().await }, Level::at::<32>())
                .await
                .unwrap();
        }
        if !forbid_membarrier() {
            return eprintln!("skipped: no seccomp filter");
        }
        let works = (0..64).map(|n: u8| {
            let work = async move {
                for round in 0..2000u32 {
                    if (round + u32::from(n)).is_multiple_of(3) {
                        upshift::yield_now().await;
                    } else {
                        time::sleep(Duration::from_micros(20)).await;
                    }
                }
            };
            handle.spawn(work, Level::new(n % 8).unwrap()).unwrap()
        });
        for work in works.collect::<Vec<_>>() {
            work.await.unwrap();
        }
    });
}
