//! Reuse of thread ids: in a pid namespace of its own, where the next number can be chosen.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use upshift_board::{Board, NO_LEVEL, Role, ThreadSpec, VcpuSpec};
use upshift_elevate::current_tid;

use crate::child::pin;
use crate::process::{Process, ROLE, elevated_threads, until};
use crate::puppet::start_puppet;
use crate::{daemon, permitted, skipped, socket, turn};

const NEXT: &str = "/proc/sys/kernel/ns_last_pid";

#[test]
fn a_thread_that_gets_the_number_of_a_registered_thread_that_has_ended_is_left_alone() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    if !Path::new(NEXT).exists() {
        return skipped("this kernel does not let one choose the next pid");
    }
    let unshared = |command: &mut Command| {
        command
            .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "child::plays_a_role", "--nocapture", "--quiet"])
            .env(ROLE, "reuse")
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
    assert!(out.contains("left alone"), "{out}\n{error}");
}

/// Starts a thread, pinned to CPU 0, that ends on demand; its number stays registered.
fn thread() -> (i32, impl FnOnce()) {
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
        until("the thread is gone", || !Path::new(&task).exists());
    };
    (tid, finish)
}

/// Starts a process that has the number `tid`.
fn successor(tid: i32, socket: &Path) -> Process {
    for _ in 0..20 {
        std::fs::write(NEXT, (tid - 1).to_string()).unwrap();
        let settings = [("CPU", "0".to_string())];
        let mut process = Process::start("puppet", socket, &settings);
        process.line("ready").unwrap();
        if process.pid() == tid {
            return process;
        }
    }
    panic!("nobody got number {tid}");
}

/// Runs in the namespace: a client whose thread ends before it was ever elevated, or while it is,
/// and then is to be elevated again.
pub(crate) fn reuse() {
    let path = socket("reuse");
    let _daemon = daemon("reuse");
    let mut rival = start_puppet(&path);
    rival.obey("level 40");
    for was_elevated in [false, true] {
        let board = Board::new().unwrap();
        let vcpu = board.vcpu(0).unwrap();
        let level = |level| {
            vcpu.line().set_running(level);
            let _ = vcpu.ring();
        };
        let (tid, finish) = thread();
        let threads = vec![ThreadSpec {
            tid,
            role: Role::Worker,
        }];
        board.join(&path, &[VcpuSpec { cpu: 0, threads }]).unwrap();
        let is_elevated = |tid| elevated_threads(std::process::id() as i32).contains(&tid);
        if was_elevated {
            level(2);
            until("it is elevated", || is_elevated(tid));
            finish();
            // Longer than the daemon takes to check it.
            std::thread::sleep(Duration::from_millis(500));
            level(NO_LEVEL);
        } else {
            finish();
        }
        let mut other = successor(tid, &path);
        for _ in 0..20 {
            level(2);
            std::thread::sleep(Duration::from_millis(5));
            assert!(elevated_threads(other.pid()).is_empty(), "{was_elevated}");
            level(NO_LEVEL);
        }
        // The other may register, and the end of the first registration takes nothing from it.
        other.obey("join");
        board.leave();
        other.obey("level 2");
        until("it is elevated in its own right", || {
            !elevated_threads(other.pid()).is_empty()
        });
    }
    println!("left alone");
}
