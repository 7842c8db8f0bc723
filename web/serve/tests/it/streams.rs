//! Tests of the streams of an HTTP/2 connection: `PRIORITY_UPDATE`, and the order in which
//! responses are sent.

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::HeaderMap;
use axum::routing;
use upshift::Level;

use crate::harness::{Folder, TestServer, wait_until};
use crate::http2::{
    DATA, END_STREAM_AND_HEADERS, Frame, HEADERS, PRIORITY_UPDATE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, connect_http2, frame, get,
};

const BIG: usize = 12 << 20;

/// Returns a server, and a flag that ends the computation of `/work`. `/work` and `/level` answer
/// with their level, `/big` with [`BIG`] bytes. The service sends `Priority: VALUE` if the request
/// has the field `answer: VALUE`.
fn server(folder: &Folder) -> (TestServer, Arc<AtomicBool>) {
    let stop = Arc::new(AtomicBool::new(false));
    let level = || async { upshift::current_level().unwrap().to_string() };
    let stopped = stop.clone();
    let work = move || {
        let stop = stopped.clone();
        async move {
            while !stop.load(Ordering::Relaxed) {
                upshift::yield_if_needed().await;
            }
            upshift::current_level().unwrap().to_string()
        }
    };
    let big = |headers: HeaderMap| async move {
        let mut answer = axum::response::Response::new(axum::body::Body::from(vec![7; BIG]));
        if let Some(priority) = headers.get("answer") {
            answer.headers_mut().insert("priority", priority.clone());
        }
        answer
    };
    let app = axum::Router::new()
        .route("/level", routing::get(level))
        .route("/work", routing::get(work))
        .route("/big", routing::get(big));
    (TestServer::with_service(folder, |_| {}, app), stop)
}

fn send_get(stream: &mut TcpStream, number: u32, path: &str, fields: &[(&str, &str)]) {
    stream.write_all(&get(number, path, fields)).unwrap();
}

fn send_update(stream: &mut TcpStream, number: u32, field: &str) {
    let payload = [&number.to_be_bytes()[..], field.as_bytes()].concat();
    stream
        .write_all(&frame(PRIORITY_UPDATE, 0, 0, &payload))
        .unwrap();
}

/// Announces that the client sends `PRIORITY_UPDATE`, and makes all windows as large as possible.
fn open_windows(stream: &mut TcpStream) {
    let settings = [0, 9, 0, 0, 0, 1, 0, 4, 0x7f, 0xff, 0xff, 0xff];
    let window = (u32::MAX / 2 - 65535).to_be_bytes();
    let frames = [
        frame(SETTINGS, 0, 0, &settings),
        frame(WINDOW_UPDATE, 0, 0, &window),
    ];
    stream.write_all(&frames.concat()).unwrap();
}

type ByStream<T> = HashMap<u32, T>;

/// Reads until all of `streams` have ended. Returns the bodies, and for each end of a stream the
/// lengths that all bodies had then.
fn read(stream: &mut TcpStream, streams: &[u32]) -> (ByStream<Vec<u8>>, Vec<ByStream<usize>>) {
    let mut stream = std::io::BufReader::with_capacity(1 << 16, stream);
    let (mut bodies, mut at_ends) = (HashMap::<u32, Vec<u8>>::new(), Vec::new());
    while at_ends.len() < streams.len() {
        let frame = Frame::read(&mut stream).expect("the connection ended");
        let number = frame.stream;
        assert!(frame.kind != RST_STREAM || !streams.contains(&number));
        let is_end = frame.ends_stream() && streams.contains(&number);
        if frame.kind == DATA {
            bodies.entry(number).or_default().extend(frame.payload);
        }
        if is_end {
            let lengths = bodies.iter().map(|(number, body)| (*number, body.len()));
            at_ends.push(lengths.collect());
        }
    }
    (bodies, at_ends)
}

fn text(bodies: &HashMap<u32, Vec<u8>>, number: u32) -> &str {
    std::str::from_utf8(&bodies[&number]).unwrap()
}

#[test]
fn an_update_changes_the_level_of_a_running_and_of_a_later_request() {
    let folder = Folder::new();
    let (server, stop) = server(&folder);
    let mut stream = connect_http2(&server);
    open_windows(&mut stream);
    send_update(&mut stream, 5, "u=1");
    send_get(&mut stream, 1, "/work", &[("priority", "u=6")]);
    send_get(&mut stream, 3, "/work", &[("priority", "u=6")]);
    // A refused request uses up a stream, too.
    let invalid = frame(HEADERS, END_STREAM_AND_HEADERS, 7, &[0x82]);
    send_get(&mut stream, 5, "/work", &[("priority", "u=6")]);
    stream.write_all(&invalid).unwrap();
    send_get(&mut stream, 9, "/work", &[("priority", "u=6")]);
    server.wait_for_requests(4);
    let levels = |server: &TestServer| {
        let mut levels: Vec<_> = server.control.requests();
        levels.sort();
        let levels = levels.into_iter().map(|(_, level, ..)| level.get());
        levels.collect::<Vec<_>>()
    };
    assert_eq!(levels(&server), [52, 52, 12, 52]);
    send_update(&mut stream, 3, "u=0, i");
    send_update(&mut stream, 9, "u=7");
    send_update(&mut stream, 101, "u=0");
    wait_until("the requests have their new levels", || {
        levels(&server) == [52, 5, 12, 60]
    });
    // The last update replaces all earlier ones.
    send_update(&mut stream, 3, "u=0");
    wait_until("the request has its new level", || {
        levels(&server) == [52, 4, 12, 60]
    });
    stop.store(true, Ordering::Relaxed);
    let (bodies, _) = read(&mut stream, &[1, 3, 5, 9]);
    let answers = [1, 3, 5, 9].map(|number| text(&bodies, number).to_owned());
    assert_eq!(answers, ["52", "4", "12", "60"]);
}

#[test]
fn updates_respect_the_ceiling_and_the_rules() {
    let folder = Folder::new();
    let level = || async { upshift::current_level().unwrap().to_string() };
    let app = axum::Router::new().fallback(level);
    let change = |config: &mut upshift_serve::Config| {
        config.ceiling = 2;
        config.priority = vec!["/ruled=33".parse().unwrap()];
    };
    let server = TestServer::with_service(&folder, change, app);
    let mut stream = connect_http2(&server);
    send_update(&mut stream, 1, "u=0");
    send_update(&mut stream, 3, "u=0");
    send_get(&mut stream, 1, "/free", &[]);
    send_get(&mut stream, 3, "/ruled", &[]);
    let (bodies, _) = read(&mut stream, &[1, 3]);
    assert_eq!((text(&bodies, 1), text(&bodies, 3)), ("20", "33"));
}

#[test]
fn the_most_urgent_stream_is_sent_first_and_equal_streams_in_order() {
    let folder = Folder::new();
    let (server, _) = server(&folder);
    let mut stream = connect_http2(&server);
    open_windows(&mut stream);
    for (number, priority) in [(1, "u=7"), (3, "u=4"), (5, "u=4"), (7, "u=1")] {
        send_get(&mut stream, number, "/big", &[("priority", priority)]);
    }
    server.wait_for_requests(4);
    let (_, at_ends) = read(&mut stream, &[1, 3, 5, 7]);
    // The socket buffers hold some bytes that preceded the last request. The rest follows in this
    // order.
    let ended = |end: usize, number: u32| at_ends[end].get(&number) == Some(&BIG);
    assert!(ended(0, 7) && ended(1, 3) && ended(2, 5), "{at_ends:?}");
    let length = |end: usize, number: u32| at_ends[end].get(&number).copied().unwrap_or(0);
    assert!(length(0, 1) < BIG && length(1, 5) < BIG / 4, "{at_ends:?}");
}

#[test]
fn incremental_streams_are_sent_alternately() {
    let folder = Folder::new();
    let (server, _) = server(&folder);
    let mut stream = connect_http2(&server);
    open_windows(&mut stream);
    for number in [1, 3] {
        send_get(&mut stream, number, "/big", &[("priority", "u=4, i")]);
    }
    server.wait_for_requests(2);
    let (_, at_ends) = read(&mut stream, &[1, 3]);
    let shares = [1, 3].map(|number| at_ends[0].get(&number).copied().unwrap_or(0));
    assert!(shares.iter().all(|share| *share > BIG / 2), "{at_ends:?}");
}

#[test]
fn a_service_may_set_the_level_of_its_response() {
    let folder = Folder::new();
    let (server, _) = server(&folder);
    let mut stream = connect_http2(&server);
    open_windows(&mut stream);
    let fields = [("priority", "u=2, i"), ("answer", "u=7")];
    send_get(&mut stream, 1, "/big", &fields);
    wait_until("the request has the level of the response", || {
        let requests = server.control.requests();
        requests
            .iter()
            .any(|request| request.1 == Level::at::<61>())
    });
    read(&mut stream, &[1]);
}

#[test]
fn a_stream_without_a_window_delays_no_client() {
    let folder = Folder::new();
    let (server, _) = server(&folder);
    let mut stream = connect_http2(&server);
    // The window of the connection is as large as possible; the windows of the streams have 64 KiB.
    let window = (u32::MAX / 2 - 65535).to_be_bytes();
    stream
        .write_all(&frame(WINDOW_UPDATE, 0, 0, &window))
        .unwrap();
    for number in [1, 3, 5] {
        send_get(&mut stream, number, "/big", &[("priority", "u=0")]);
    }
    send_get(&mut stream, 7, "/level", &[("priority", "u=7")]);
    let (bodies, _) = read(&mut stream, &[7]);
    assert_eq!(text(&bodies, 7), "60");
    // The streams continue when they get a window.
    for number in [1, 3, 5] {
        let window = (BIG as u32).to_be_bytes();
        stream
            .write_all(&frame(WINDOW_UPDATE, 0, number, &window))
            .unwrap();
    }
    // The buffered reader may have dropped bytes that follow the last response, so the rest of the
    // connection cannot be parsed.
    stream
        .write_all(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]))
        .unwrap();
    drop(stream);
    server.wait_until_idle();
}
