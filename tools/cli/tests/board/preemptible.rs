//! Runs servers with preemption under a daemon: their threads are elevated together, and demoted
//! again.

use super::*;

/// Starts a preemptible server at `level`, on CPU 0.
fn preemptible_server(socket: &Path, level: &str) -> (Running, String) {
    let address = format!("127.0.0.1:0@{level}");
    let args = ["spin-server", "--listen", &address, "--pin", "0"];
    let more = ["--preempt", "on", "--board", "required"];
    let (server, line) = Running::start(socket, &[&args[..], &more].concat());
    let address = line.trim().strip_prefix("listening on ").expect(&line);
    (server, address.to_owned())
}

/// Returns policy and real-time priority of a thread, as the kernel reports them.
fn policy(thread: i64) -> Option<(u32, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    // `fields` begins with the third field.
    let field = |number: usize| fields.split(' ').nth(number - 3)?.parse().ok();
    Some((field(41)?, field(40)?))
}

/// Returns role and thread of each registered thread of a process.
fn threads(process: &serde_json::Value) -> Vec<(String, i64)> {
    let vcpus = process["vcpus"].as_array().unwrap().iter();
    let threads = vcpus.flat_map(|vcpu| vcpu["threads"].as_array().unwrap());
    threads
        .map(|thread| {
            let role = thread["role"].as_str().unwrap().to_owned();
            (role, thread["tid"].as_i64().unwrap())
        })
        .collect()
}

fn process_of(socket: &Path, pid: u32) -> serde_json::Value {
    let mut all = registered(socket).into_iter();
    all.find(|process| process["pid"] == pid)
        .expect("the process is registered")
}

#[test]
fn threads_of_a_preemptible_server_are_elevated_together_and_demoted_again() {
    const FIFO: u32 = 1;
    let socket = socket("set");
    let daemon = daemon(&socket, &[]);
    let status = upshift(&socket, &["daemon", "--status"]);
    if !String::from_utf8_lossy(&status.stdout).contains("\"enforcing\": true") {
        eprintln!("skipped: the daemon may not use SCHED_FIFO here");
        return;
    }
    let (server, address) = preemptible_server(&socket, "2");
    let pid = server.child.id();
    let args = ["burn", "--pin", "0", "--level", "40"];
    let more = ["--duration", "10s", "--board", "required"];
    let (burning, _) = Running::start(&socket, &[&args[..], &more].concat());
    wait_for(&socket, 2);
    // Long requests are suspended for each other and for short ones.
    let load = ["load", "spin", "--connect", &address, "--connections", "2"];
    let time = ["--rate", "300", "--warmup", "100ms", "--duration", "3s"];
    let mix = ["--long", "5ms", "--long-share", "5%", "--level", "2"];
    let loading = {
        let mut child = Command::new(PROGRAM)
            .args([&load[..], &time, &mix].concat())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Running { child, output }
    };
    let deadline = Instant::now() + TIMEOUT;
    let mut seen: Vec<(String, Option<(u32, u32)>)>;
    let is_elevated = loop {
        let threads = threads(&process_of(&socket, pid));
        seen = threads
            .into_iter()
            .map(|(role, tid)| (role, policy(tid)))
            .collect();
        let policies_of = |role: &str| {
            let all = seen.iter().filter(|(other_role, _)| other_role == role);
            all.map(|(_, policy)| policy.filter(|policy| policy.0 == FIFO))
                .collect::<Vec<_>>()
        };
        let (workers, dispatchers) = (policies_of("worker"), policies_of("dispatcher"));
        let lowest = dispatchers.iter().flatten().map(|policy| policy.1).min();
        if workers.len() > 2
            && workers.iter().chain(&dispatchers).all(Option::is_some)
            && workers
                .iter()
                .flatten()
                .all(|policy| Some(policy.1) < lowest)
        {
            break true;
        }
        if Instant::now() > deadline {
            break false;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let loaded = loading.end();
    assert!(is_elevated, "{seen:?}\n{loaded}");
    assert!(loaded.contains("long"), "{loaded}");
    burning.signal("TERM");
    burning.end();
    // Once the server is alone again, all its threads are ordinary.
    let deadline = Instant::now() + TIMEOUT;
    let all = || threads(&process_of(&socket, pid)).into_iter();
    while all().any(|(_, tid)| policy(tid).is_some_and(|policy| policy.0 == FIFO)) {
        assert!(Instant::now() < deadline, "a thread is still elevated");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_is_answered(&socket, &address);
    server.signal("TERM");
    server.end();
    daemon.signal("TERM");
    daemon.end();
}

#[test]
fn a_preemptible_server_yields_to_a_more_urgent_process() {
    let socket = socket("yields");
    let _daemon = daemon(&socket, &["--cooperative"]);
    let (server, address) = preemptible_server(&socket, "40");
    // The load exceeds what the CPU can serve, for long enough.
    let load = ["load", "spin", "--connect", &address, "--connections", "4"];
    let time = ["--rate", "300", "--short", "10ms", "--level", "40"];
    let flood = Command::new(PROGRAM)
        .args([&load[..], &time, &["--duration", "60s"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.child.id())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let field = |number: usize| fields.split(' ').nth(number - 3).unwrap();
        field(14).parse::<u64>().unwrap() + field(15).parse::<u64>().unwrap()
    };
    // `Running` needs a pipe to read from; the output of the flood itself is discarded.
    let mut flood = Running {
        child: flood,
        output: BufReader::new(
            Command::new("true")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
                .stdout
                .take()
                .unwrap(),
        ),
    };
    // Two equal processes would each get half of the CPU time that other programs leave, which is
    // little in some of these seconds on a busy machine.
    let yields = |(urgent, other): &(f64, f64)| *urgent > 2.0 * other;
    let mut seen: Vec<(f64, f64)> = Vec::new();
    while seen.len() < 20 && !seen.last().is_some_and(yields) {
        let args = ["burn", "--json", "--pin", "0", "--level", "2"];
        let more = ["--duration", "1s", "--board", "required"];
        let (mut burning, _) = Running::start(&socket, &[&args[..], &more].concat());
        let (before, mut text) = (ticks(), String::new());
        burning.output.read_line(&mut text).unwrap();
        // A tick is a hundredth of a second.
        let other_seconds = (ticks() - before) as f64 / 100.0;
        let burnt: serde_json::Value = serde_json::from_str(text.trim()).expect(&text);
        burning.end();
        seen.push((burnt["work"].as_f64().unwrap(), other_seconds));
    }
    assert!(
        flood.child.try_wait().unwrap().is_none(),
        "the load has ended"
    );
    let _ = flood.child.kill();
    assert!(seen.last().is_some_and(yields), "seconds of work: {seen:?}");
    assert_is_answered(&socket, &address);
    server.signal("TERM");
    server.end();
}
