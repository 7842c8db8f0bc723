//! Tests of the niceness of a preemptible vCPU's threads.

use std::time::Duration;

use upshift::Level;

use crate::{build, builder};

/// Prefix of the names of the runtime's threads. It is short, since the runtime cuts a long prefix.
const PREFIX: &str = "renice";

/// Returns the niceness of each thread of this process whose name begins with [`PREFIX`].
fn niceness() -> Vec<i32> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let stat = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        name.starts_with(PREFIX)
            .then(|| rest.split_whitespace().nth(16)?.parse().ok())?
    };
    threads.filter_map(stat).collect()
}

/// Sets the niceness of the calling thread. Returns whether that is permitted.
fn set_niceness(nice: i32) -> bool {
    // SAFETY: `setpriority` takes no pointer; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) == 0 }
}

/// Threads that a vCPU starts later have the niceness of its first threads, even under `nice -n
/// -5`. With the default niceness, they would wait for the CPU behind long polls on the first
/// threads.
#[test]
fn threads_that_are_started_later_have_the_niceness_of_the_first() {
    if !set_niceness(-5) {
        return crate::skipped(&"a negative niceness needs CAP_SYS_NICE");
    }
    let runtime = build(builder().name(PREFIX));
    if let Some(runtime) = &runtime {
        let before = niceness().len();
        runtime.block_on(async {
            let sleeps = || async { std::thread::sleep(Duration::from_millis(50)) };
            let polls: Vec<_> = (0..6)
                .map(|_| upshift::spawn(sleeps(), Level::at::<20>()))
                .collect();
            for poll in polls {
                poll.await.unwrap();
            }
        });
        let all = niceness();
        assert!(all.len() > before, "no thread was started");
        assert!(all.iter().all(|nice| *nice == -5), "niceness: {all:?}");
    }
    drop(runtime);
    assert!(set_niceness(0));
}
