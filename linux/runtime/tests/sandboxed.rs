//! Tests of a process that installs a seccomp filter after it has built a runtime, and so forbids a
//! system call on which the runtime relies.

#[path = "support/child.rs"]
mod child;

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use child::child;
use upshift::{Level, Runtime, time};

/// Environment variable that is set in the child process, which runs the body of the test.
const CHILD: &str = "UPSHIFT_SANDBOXED";

/// Makes `membarrier` fail with EPERM on all threads. Returns false if the process may not install
/// such a filter.
fn forbid_membarrier() -> bool {
    let (load, equals, return_code) = (0x20, 0x15, 0x06);
    let number = libc::SYS_membarrier as u32;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut steps = [
        step(load, 0, 0),
        step(equals, 1, number),
        step(return_code, 0, refuse),
        step(return_code, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    let (mode, flags) = (
        libc::SECCOMP_SET_MODE_FILTER,
        libc::SECCOMP_FILTER_FLAG_TSYNC,
    );
    // SAFETY: `filter` points to `steps`, which outlives the calls.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter) == 0
    }
}

/// The lock of a vCPU is biased to the vCPU's own thread, which takes it without an atomic
/// read-modify-write. A vCPU that steals work from another has to revoke this bias, and only
/// `membarrier` can do that.
#[test]
fn a_process_that_forbids_membarrier_aborts_with_a_message_that_names_the_call() {
    if std::env::var_os(CHILD).is_some() {
        return run_without_membarrier();
    }
    let name = "a_process_that_forbids_membarrier_aborts_with_a_message_that_names_the_call";
    let output = child(name).env(CHILD, "1").output().unwrap();
    let (status, stderr) = (output.status, String::from_utf8(output.stderr).unwrap());
    if stderr.contains("skipped: ") {
        return println!("{stderr}");
    }
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}: {stderr}");
    let names_call = |line: &str| line.starts_with("upshift: ") && line.contains("membarrier");
    assert!(stderr.lines().any(names_call), "{stderr}");
}

fn run_without_membarrier() {
    // SAFETY: `alarm` takes no pointer.
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
            return eprintln!("skipped: the process may not install a seccomp filter");
        }
        let tasks = (0..64).map(|n: u8| {
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
        for work in tasks.collect::<Vec<_>>() {
            work.await.unwrap();
        }
    });
}
