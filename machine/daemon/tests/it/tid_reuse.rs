//! Tests of reused thread ids. They run in a new pid namespace, where a process can choose the next
//! TID.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use upshift_board::{Board, NO_LEVEL, Role, ThreadSpec, VcpuSpec};
use upshift_elevate::current_tid;

use crate::child::pin;
use crate::process::{Process, ROLE, elevated_threads, wait_until};
use crate::scripted_client::start_scripted_client;
use crate::{daemon, permitted, serial_test, skipped, socket};

const LAST_PID_FILE: &str = "/proc/sys/kernel/ns_last_pid";

#[test]
fn a_thread_with_the_tid_of_an_ended_registered_thread_is_not_moved() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    if !Path::new(LAST_PID_FILE).exists() {
        return skipped("this kernel does not let a process choose the next pid");
    }
    let unshared = |command: &mut Command| {
        command
            .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "child::entry_point", "--nocapture", "--quiet"])
            .env(ROLE, "tid-reuse")
            .output()
    };
    let Ok(output) = unshared(&mut Command::new("unshare")) else {
        return skipped("unshare is not installed");
    };
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    if error.contains("unshare") {
        return skipped(error.trim());
    }
    assert!(out.contains("never moved"), "{out}\n{error}");
}

/// Starts a thread that is pinned to CPU 0. Returns its TID, and a function that ends it.
fn start_thread() -> (i32, impl FnOnce()) {
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        pin(0);
        sender.send(current_tid()).unwrap();
        let _ = ends.recv();
    });
    let tid = receiver.recv().unwrap();
    let finish = move || {
        drop(end);
        thread.join().unwrap();
        let task = format!("/proc/self/task/{tid}");
        wait_until("the thread has ended", || !Path::new(&task).exists());
    };
    (tid, finish)
}

fn start_with_pid(tid: i32, socket: &Path) -> Process {
    for _ in 0..20 {
        std::fs::write(LAST_PID_FILE, (tid - 1).to_string()).unwrap();
        let settings = [("CPU", "0".to_string())];
        let mut process = Process::start("scripted-client", socket, &settings);
        process.line("ready").unwrap();
        if process.pid() == tid {
            return process;
        }
    }
    panic!("no process got pid {tid}");
}

/// Runs in the namespace. Registers a thread, which ends before it was ever elevated or while it is
/// elevated, and then publishes an urgent level for this thread.
pub(crate) fn tid_reuse() {
    let path = socket("tid-reuse");
    let _daemon = daemon("tid-reuse");
    let mut rival = start_scripted_client(&path);
    rival.execute("level 40");
    for was_elevated in [false, true] {
        let board = Board::new().unwrap();
        let vcpu = board.vcpu(0).unwrap();
        let level = |level| {
            vcpu.line().set_running(level);
            let _ = vcpu.ring();
        };
        let (tid, finish) = start_thread();
        let threads = vec![ThreadSpec {
            tid,
            role: Role::Worker,
        }];
        board.join(&path, &[VcpuSpec { cpu: 0, threads }]).unwrap();
        let is_elevated = |tid| elevated_threads(std::process::id() as i32).contains(&tid);
        if was_elevated {
            level(2);
            wait_until("the thread is elevated", || is_elevated(tid));
            finish();
            // The daemon checks the thread at least once in this time.
            std::thread::sleep(Duration::from_millis(500));
            level(NO_LEVEL);
        } else {
            finish();
        }
        let mut other = start_with_pid(tid, &path);
        for _ in 0..20 {
            level(2);
            std::thread::sleep(Duration::from_millis(5));
            assert!(
                elevated_threads(other.pid()).is_empty(),
                "the other process is elevated; the ended thread was elevated: {was_elevated}"
            );
            level(NO_LEVEL);
        }
        // The other process may register its thread with the same TID, and the end of the first
        // registration does not affect it.
        other.execute("join");
        board.leave();
        other.execute("level 2");
        wait_until("the other process is elevated", || {
            !elevated_threads(other.pid()).is_empty()
        });
    }
    println!("never moved");
}
