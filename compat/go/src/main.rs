//! Checks that coroutines that call Go make progress. Go's runtime has threads, signals and small
//! stacks of its own. A *party* is a coroutine that repeats a step in which it calls Go, and all
//! parties must make progress.
//!
//! Each case runs for half a second, or for `UPSHIFT_TORTURE_SECONDS`, and prints the numbers of
//! steps of its parties. A party without progress ends the process.

// This program uses fewer functions of the module than the runtime's tests do.
#[allow(dead_code)]
#[path = "../../../linux/runtime/tests/torture/parties.rs"]
mod parties;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;

use parties::{BACKGROUND, MIDDLE, Parties, URGENT, duration, micros, preemptible};
use upshift::io::AsyncReadExt;
use upshift::net::TcpListener;
use upshift::{Runtime, sync, time};

unsafe extern "C" {
    safe fn Work(micros: i64) -> i64;
}

/// Returns the step of a party, which computes in Go for `micros` microseconds.
fn work(micros: i64) -> impl FnMut() + Send + 'static {
    move || _ = std::hint::black_box(Work(micros))
}

fn main() {
    let cooperative = |vcpus| {
        let runtime = Runtime::builder().vcpus(vcpus).build();
        runtime.expect("cannot build the runtime")
    };
    if let Some(runtime) = preemptible(1) {
        case("one vCPU, preemption", &runtime, long_polls);
    }
    case("two vCPUs", &cooperative(2), sockets);
    case("one vCPU", &cooperative(1), long_polls);
}

fn case(name: &str, runtime: &Runtime, add_parties: impl FnOnce(&Runtime, &mut Parties)) {
    let mut parties = Parties::default();
    add_parties(runtime, &mut parties);
    let steps = parties.run(runtime, |observer| observer.wait_for(duration(), 1));
    let stats = runtime.handle().preemption_stats();
    println!("{name}: steps {steps:?}; {stats:?}");
}

/// Adds parties with long polls of one level (urgency), and parties with short polls of more urgent
/// levels.
fn long_polls(runtime: &Runtime, parties: &mut Parties) {
    for _ in 0..4 {
        parties.party(runtime, BACKGROUND, work(8_000), upshift::yield_now);
    }
    parties.resting_party(runtime, MIDDLE, work(1_000));
    parties.resting_party(runtime, URGENT, work(100));
}

/// Adds parties that serve connections. Data arrives while a vCPU (a thread's run queue) may be in
/// a long poll of another party.
fn sockets(runtime: &Runtime, parties: &mut Parties) {
    const CONNECTIONS: usize = 8;
    parties.party(runtime, BACKGROUND, work(5_000), || {
        time::sleep(micros(1_000))
    });
    let streams = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").expect("cannot listen");
        let address = listener.local_addr().expect("cannot read the address");
        let (mut streams, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            clients.push(TcpStream::connect(address).expect("cannot connect"));
            streams.push(listener.accept().await.expect("cannot accept").0);
        }
        thread::spawn(move || _ = send_requests(clients));
        streams
    });
    let levels = [BACKGROUND, MIDDLE, URGENT].into_iter().cycle();
    for (stream, level) in streams.into_iter().zip(levels) {
        let stream = Arc::new(sync::Mutex::new(stream));
        let answer = move || {
            let stream = stream.clone();
            async move {
                let mut stream = stream.lock().await;
                let mut byte = [0];
                let result = stream.read_exact(&mut byte).await;
                result.expect("cannot read a request");
                let (result, _) = stream.write_all(byte).await;
                result.expect("cannot write a response");
            }
        };
        parties.party(runtime, level, work(200), answer);
    }
}

fn send_requests(mut clients: Vec<TcpStream>) -> std::io::Result<()> {
    loop {
        for client in &mut clients {
            client.write_all(b"x")?;
        }
        for client in &mut clients {
            client.read_exact(&mut [0])?;
        }
        thread::sleep(micros(300));
    }
}
