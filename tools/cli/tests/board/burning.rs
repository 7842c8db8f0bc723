//! Two processes burn the time of one CPU; the tests compare the shares that they get.

use upshift_elevate::sys::process_time;

use super::*;

/// Total CPU time of both processes after which their shares are compared.
const TOTAL_NS: u64 = 1_500_000_000;

/// Time limit, long because a busy machine gives the processes only a small part of the CPU.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Runs two burning processes of levels 2 and 40 on CPU 0, and returns the CPU time of each while
/// both are registered. Other programs prolong the run, and change neither total nor order.
fn cpu_times_of_two_burners(test: &str, daemon_args: &[&str]) -> [u64; 2] {
    let socket = socket(test);
    let _daemon = daemon(&socket, daemon_args);
    let both = ["40", "2"].map(|level| {
        let args = ["burn", "--pin", "0", "--level", level];
        Running::start(&socket, &[&args[..], &["--board", "required"]].concat()).0
    });
    wait_for(&socket, 2);
    let used = || {
        let cpu_time = |running: &Running| process_time(running.child.id() as i32).unwrap();
        both.each_ref().map(cpu_time)
    };
    let (before, began) = (used(), Instant::now());
    loop {
        let now = used();
        let [other, urgent] = [0, 1].map(|index| now[index] - before[index]);
        // The less urgent process eventually runs, too.
        if urgent + other >= TOTAL_NS && other > 0 {
            return [urgent, other];
        }
        assert!(began.elapsed() < TIME_LIMIT, "ns of CPU: {urgent}, {other}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that the more urgent process gets more than two thirds of the CPU time. With equal
/// parts it would get half.
fn assert_the_more_urgent_gets_twice_as_much(test: &str, daemon_args: &[&str]) {
    let [urgent, other] = cpu_times_of_two_burners(test, daemon_args);
    println!("urgent {urgent}, other {other} ns of CPU");
    assert!(urgent > 2 * other, "ns of CPU: {urgent}, {other}");
}

#[test]
fn the_less_urgent_process_yields_voluntarily_and_never_starves() {
    assert_the_more_urgent_gets_twice_as_much("cooperative", &["--cooperative"]);
}

#[test]
fn the_more_urgent_process_is_elevated_and_the_other_never_starves() {
    let socket = socket("enforces");
    {
        let _daemon = daemon(&socket, &[]);
        let status = upshift(&socket, &["daemon", "--status"]);
        if !String::from_utf8_lossy(&status.stdout).contains("\"enforcing\": true") {
            eprintln!("skipped: the daemon may not use SCHED_FIFO here");
            return;
        }
    }
    assert_the_more_urgent_gets_twice_as_much("elevated", &[]);
}
