//! Clients that a test controls. A scripted client executes commands from its input, one per line,
//! and answers each with a line `command=result`. Most commands have a number as their argument:
//! `level` and `await` a level, `bits` the bitmap of the vCPU, `burn` the monotonic time in ns
//! until which the client spins, `ring` and `write-random` a duration in ms, `affinity` a CPU.
//! `reap` clears the arrivals that `arrive` has published.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use upshift_board::{Board, NO_LEVEL, Role, ThreadSpec, Vcpu, VcpuSpec};
use upshift_elevate::sys::{CpuSet, Kernel, SchedAttr, Sys};
use upshift_elevate::{Policy, current_tid};

use crate::child::{cpu_time, join, number, pin, setting};
use crate::process::{Process, Random, monotonic};

/// Executes commands until the input ends.
pub(crate) fn scripted_client() {
    let mut state: Option<(Board, Vcpu)> = None;
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (command, argument) = line.split_once(' ').unwrap_or((&line, "0"));
        let argument: u64 = argument.parse().unwrap();
        if command == "join" {
            state = Some(join());
            println!("join=done");
            continue;
        }
        let (board, vcpu) = state.as_ref().expect("the first command is `join`");
        let vcpu_line = vcpu.line();
        let answer = match command {
            "level" => {
                vcpu_line.set_running(argument as u8);
                vcpu.settle().unwrap().to_string()
            }
            "await" => {
                vcpu_line.set_awaited(argument as u8);
                vcpu.settle().unwrap().to_string()
            }
            "bits" => {
                vcpu_line.bitmap().store(argument, Relaxed);
                vcpu.settle().unwrap().to_string()
            }
            "burn" => {
                let before = cpu_time();
                while monotonic() < argument {
                    std::hint::spin_loop();
                }
                ((cpu_time() - before) / 1000).to_string()
            }
            "arrive" => vcpu.arrive(argument as u8).unwrap().to_string(),
            "reap" => {
                vcpu_line.arrived().store(0, Relaxed);
                vcpu.settle().unwrap().to_string()
            }
            "ring" => ring(vcpu, argument).to_string(),
            "write-random" => write_random(vcpu, argument),
            "fork" => fork(),
            "exec" => {
                use std::os::unix::process::CommandExt;
                // The calling thread is not the main thread. By `exec` it becomes the main thread,
                // and gets the TID of the main thread.
                println!("exec=started");
                panic!("{}", std::process::Command::new("sleep").arg("100").exec());
            }
            "affinity" => {
                let set = CpuSet::only(argument as usize).unwrap();
                format!("{}", Kernel.sched_setaffinity(0, &set).is_ok())
            }
            "set-policy" => {
                let attr = SchedAttr {
                    nice: 5,
                    ..SchedAttr::normal()
                };
                format!("{}", Kernel.sched_setattr(0, &attr).is_ok())
            }
            "show-policy" => Policy::of(&Kernel, 0).unwrap().to_string(),
            "outranked" => vcpu.is_outranked(argument as u8).to_string(),
            "leave" => {
                board.leave();
                "done".to_string()
            }
            other => panic!("unknown command {other}"),
        };
        println!("{command}={answer}");
    }
}

/// Rings the doorbell for `millis` ms, as often as possible. Returns the number of rings.
fn ring(vcpu: &Vcpu, millis: u64) -> u64 {
    let (start, mut rings) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(millis) {
        vcpu.ring().unwrap();
        rings += 1;
    }
    rings
}

/// Writes random words (64 bits) for `millis` ms to the page that this process shares with the
/// daemon, in the lines of the first 62 vCPUs.
fn write_random(vcpu: &Vcpu, millis: u64) -> String {
    let mut random = Random(0x5eed_5eed_5eed);
    let start = Instant::now();
    let base = std::ptr::from_ref(vcpu.line()).cast::<u64>().cast_mut();
    while start.elapsed() < Duration::from_millis(millis) {
        // SAFETY: `base` is the line of vCPU 0, and the page has a line for each of 252 vCPUs. The
        // 496 words of the first 62 lines are atomics or unused, and other processes read them as
        // atomics.
        unsafe {
            let word = base.add(random.below(8 * 62) as usize);
            std::sync::atomic::AtomicU64::from_ptr(word).store(random.below(u64::MAX), Relaxed);
        }
        if random.below(64) == 0 {
            vcpu.settle().unwrap();
        }
    }
    "done".to_string()
}

/// Returns the scheduling policy of a forked child.
fn fork() -> String {
    // SAFETY: the child makes only system calls before it exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends the child without running exit handlers of the parent.
        unsafe {
            let policy = libc::sched_getscheduler(0);
            libc::_exit(policy & 0xff);
        }
    }
    let mut status = 0;
    // SAFETY: `pid` is the child, and `status` is valid for writes.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    libc::WEXITSTATUS(status).to_string()
}

/// Alternates between spinning and sleeping, and registers again whenever it is not registered.
pub(crate) fn rejoining_client() {
    let cpu = number("CPU") as usize;
    pin(cpu);
    let board = Board::new().unwrap();
    let vcpu = board.vcpu(0).unwrap();
    let socket = PathBuf::from(setting("SOCKET"));
    let threads = vec![ThreadSpec {
        tid: current_tid(),
        role: Role::Worker,
    }];
    let spec = [VcpuSpec { cpu, threads }];
    let level = number("LEVEL") as u8;
    vcpu.line().set_awaited(level);
    println!("ready");
    let (mut joins, start) = (0u64, Instant::now());
    while start.elapsed() < Duration::from_secs(290) {
        if !board.is_joined() {
            vcpu.line().set_running(NO_LEVEL);
            if board.join(&socket, &spec).is_ok() {
                joins += 1;
                println!("joined {joins}");
            }
        }
        vcpu.line().set_running(level);
        let _ = vcpu.settle();
        let end = Instant::now() + Duration::from_micros(300);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        vcpu.line().set_running(NO_LEVEL);
        let _ = vcpu.settle();
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub(crate) fn start_scripted_client(socket: &Path) -> Process {
    let mut client = Process::start("scripted-client", socket, &[("CPU", "0".to_string())]);
    client.line("ready").unwrap();
    client.execute("join");
    client
}
