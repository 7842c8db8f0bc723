//! Tests that stalls, metrics and timelines show the name of named work, and the level at which the
//! work ran.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use upshift::axum::NameRoutes;
use upshift::hyper::Server;
use upshift::metrics::Metrics;
use upshift::net::TcpListener;
use upshift::observe::Stall;
use upshift::trace::{EventKind, Step};
use upshift::{Handle, Level, Preemption, Priority, Runtime, named};

/// Stall limit of the runtimes.
const LIMIT: Duration = Duration::from_millis(20);
const ROUTE: &str = "GET /users/{id}";

/// Computes until the watchdog has reported a stall.
fn compute_until(reported: &OnceLock<Stall>) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while reported.get().is_none() && Instant::now() < deadline {
        std::hint::spin_loop();
    }
}

fn send_requests(address: SocketAddr, paths: &[&str]) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    for (n, path) in paths.iter().enumerate() {
        let close = n + 1 == paths.len();
        let field = if close { "connection: close\r\n" } else { "" };
        write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\n{field}\r\n").unwrap();
    }
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    answers
}

/// Serves `app` at level 40, receives at level 3, and requests `paths`.
async fn serve(app: Router, paths: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::new(listener)
        .receive_level(Level::at::<3>())
        .levels(|_| Level::at::<40>());
    let server = upshift::spawn(server.run(app.layer(NameRoutes)), Priority::Inherit);
    let answers = upshift::spawn_blocking(move || send_requests(address, paths)).await;
    server.cancel();
    answers.unwrap()
}

fn assert_names_route(stall: &Stall) {
    assert_eq!(stall.name.as_deref(), Some(ROUTE), "{stall}");
    assert_eq!(stall.level, Level::at::<40>(), "{stall}");
    let prefix = format!("{ROUTE} (level 40, coroutine ");
    assert!(stall.to_string().starts_with(&prefix), "{stall}");
}

/// Returns the report of a stall while its request runs, a snapshot of that time, and the report
/// after the request has ended.
fn stall_of_a_request(preemption: Preemption) -> (Stall, Metrics, Stall) {
    let reported = Arc::new(OnceLock::new());
    let metrics_of_stall = Arc::new(OnceLock::new());
    let (end_sender, end_receiver) = channel();
    let handle = Arc::new(OnceLock::<Handle>::new());
    let on_stall = {
        let (reported, metrics_of_stall) = (reported.clone(), metrics_of_stall.clone());
        let handle = handle.clone();
        move |stall: &Stall| {
            if stall.name.is_none() {
                return;
            }
            if stall.is_running {
                let _ = metrics_of_stall.set(handle.get().unwrap().metrics());
                let _ = reported.set(stall.clone());
            } else {
                let _ = end_sender.send(stall.clone());
            }
        }
    };
    let builder = Runtime::builder().vcpus(1).preemption(preemption);
    let runtime = builder.stall_limit(LIMIT).on_stall(on_stall).build();
    let runtime = runtime.unwrap();
    handle.set(runtime.handle()).unwrap();
    let stalls = reported.clone();
    let handler = move |Path(id): Path<u64>| async move {
        compute_until(&stalls);
        format!("user {id}")
    };
    let app = Router::new().route("/users/{id}", get(handler));
    let answers = runtime.block_on(serve(app, &["/users/7"]));
    assert!(answers.contains("user 7"), "{answers}");
    let running = reported
        .get()
        .expect("the stall was not reported while it lasted")
        .clone();
    let ended: Stall = Receiver::recv_timeout(&end_receiver, Duration::from_secs(60)).unwrap();
    let metrics = metrics_of_stall.get().unwrap().clone();
    (running, metrics, ended)
}

#[test]
fn a_stall_names_route_and_level_while_it_runs_and_when_it_has_ended() {
    for preemption in [Preemption::Off, Preemption::Preferred] {
        let (running, metrics, ended) = stall_of_a_request(preemption);
        assert!(running.is_running);
        assert_names_route(&running);
        assert_names_route(&ended);
        assert_eq!(running.id, ended.id);
        let vcpu = &metrics.vcpus[0];
        // With preemption, the vCPU may poll another coroutine meanwhile.
        if preemption == Preemption::Off {
            assert_eq!(vcpu.polls_name.as_deref(), Some(ROUTE));
            let mut longest = metrics.stalls.longest.iter();
            assert!(longest.any(|poll| poll.name.as_deref() == Some(ROUTE)
                && poll.level == Level::at::<40>()
                && poll.is_running));
        }
    }
}

#[test]
fn requests_are_counted_by_route() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    let app = Router::new()
        .route("/users/{id}", get(async || "user"))
        .route("/orders", get(async || upshift::yield_now().await));
    let paths = ["/users/1", "/users/2", "/orders", "/users/3", "/nowhere"];
    let answers = runtime.block_on(serve(app, Box::leak(Box::new(paths))));
    assert_eq!(answers.matches("200 OK").count(), 4, "{answers}");
    let metrics = runtime.handle().metrics();
    let work = |name: &str| metrics.named.iter().find(|work| work.name == name).unwrap();
    let users = work(ROUTE);
    assert_eq!((users.ended, users.under_way, users.polls), (3, 0, 3));
    assert_eq!((users.level, users.latency.count()), (Level::at::<40>(), 3));
    assert_eq!(work("GET /orders").ended, 1);
    assert!(work("GET /orders").polls >= 2);
    assert_eq!(work("GET (no route)").ended, 1);
    assert_eq!(metrics.named.len(), 3);
}

#[test]
fn the_innermost_name_is_shown_and_then_the_outer_name_again() {
    let stalls = Arc::new(Mutex::new(Vec::<Stall>::new()));
    let wait_for = |stalls: &Mutex<Vec<Stall>>, count: usize| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while stalls.lock().unwrap().len() < count && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let reports = stalls.clone();
    let runtime = Runtime::builder()
        .vcpus(1)
        .stall_limit(LIMIT)
        .on_stall(move |stall| {
            if stall.is_running && stall.name.is_some() {
                reports.lock().unwrap().push(stall.clone());
            }
        })
        .build()
        .unwrap();
    runtime.block_on(named("outer", async {
        named("inner", async { wait_for(&stalls, 1) }).await;
        // The outer name needs its own poll.
        upshift::yield_now().await;
        wait_for(&stalls, 2);
    }));
    let names: Vec<_> = stalls
        .lock()
        .unwrap()
        .iter()
        .map(|stall| stall.name.clone().unwrap())
        .collect();
    assert_eq!(names, ["inner".into(), Arc::<str>::from("outer")]);
}

#[test]
fn a_poll_without_a_name_does_not_inherit_the_name_of_an_earlier_poll() {
    let reported = Arc::new(OnceLock::new());
    let stall_slot = reported.clone();
    let runtime = Runtime::builder()
        .vcpus(1)
        .stall_limit(LIMIT)
        .on_stall(move |stall| drop(stall_slot.set(stall.clone())))
        .build()
        .unwrap();
    runtime.block_on(async {
        named("before", async {}).await;
        // After this sleep, the next poll has its own reading of the clock.
        upshift::time::sleep(Duration::from_millis(1)).await;
        compute_until(&reported);
    });
    assert_eq!(reported.get().unwrap().name, None);
}

#[test]
fn names_are_bounded() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        for n in 0..2000 {
            named(format!("name {n}"), async {}).await;
        }
    });
    let names = runtime.handle().metrics().named;
    assert_eq!(names.len(), 1024);
    assert_eq!(names[1023].name, "(other names)");
    assert_eq!(names[1023].ended, 2000 - 1023);
}

#[test]
fn a_timeline_shows_the_name_and_its_level() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    let trace = runtime.handle().trace();
    trace.start(10_000).unwrap();
    let app = Router::new().route("/users/{id}", get(async || upshift::yield_now().await));
    runtime.block_on(serve(app, &["/users/1"]));
    trace.stop();
    let timeline = trace.snapshot();
    let polls: Vec<_> = timeline
        .events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Coroutine(Step::Polled, poll) if timeline.site_name(poll.site) == ROUTE => {
                Some(poll.level)
            }
            _ => None,
        })
        .collect();
    assert_eq!(polls, [Level::at::<40>(); 2]);
    let mut json = Vec::new();
    timeline.write_chrome(&mut json).unwrap();
    let json = String::from_utf8(json).unwrap();
    assert!(json.contains("\"name\":\"GET /users/{id}\",\"cat\":\"level 40\""));
}
