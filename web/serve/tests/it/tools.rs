//! Load generators and clients that others wrote: no errors, the right bytes, the right counts.

use crate::harness::{Folder, TestServer, output_text, run_tool};

fn site() -> (Folder, TestServer) {
    let folder = Folder::new();
    folder.write("small.txt", "small");
    let server = TestServer::files(&folder.0);
    (folder, server)
}

/// Keeps debug builds on loaded machines within their time.
const SOME: &str = "2000";

#[test]
fn load_generators_see_no_errors() {
    let (_folder, server) = site();
    let (file, text) = (server.url("/small.txt"), server.url("/plaintext"));
    let done = format!("{SOME} succeeded, 0 failed, 0 errored, 0 timeout");
    let well = format!("status codes: {SOME} 2xx");
    let complete = format!("Complete requests:      {SOME}");
    let of_ab = [&complete[..], "Failed requests:        0"];
    let of_h2load = [&done[..], &well];
    let patient = "--timeout=20s";
    for (name, args, says) in [
        (
            "ab",
            &["-q", "-n", SOME, "-c", "20", "-k", &file][..],
            &of_ab[..],
        ),
        ("ab", &["-q", "-n", SOME, "-c", "20", &file], &of_ab),
        (
            "wrk",
            &["-t1", "-c50", "-d1s", patient, &text],
            &["requests in"],
        ),
        (
            "h2load",
            &["-n", SOME, "-c", "10", "-m", "20", &file],
            &of_h2load,
        ),
        (
            "h2load",
            &["-n", SOME, "-c", "10", "-m", "20", "--h1", &file],
            &of_h2load,
        ),
    ] {
        let Some(output) = run_tool(name, args) else {
            continue;
        };
        let output_text = output_text(&output);
        assert!(
            says.iter().all(|what| output_text.contains(what)),
            "{name}: {output_text}"
        );
        let wrong = ["Socket errors", "Non-2xx"];
        assert!(
            !wrong.iter().any(|what| output_text.contains(what)),
            "{name}: {output_text}"
        );
    }
}

/// Returns the cases of h2spec that fail at `path`, by name, each with its observation.
fn h2spec(server: &TestServer, path: &str) -> Option<Vec<(String, String)>> {
    let port = server.address.port().to_string();
    let args = ["-h", "127.0.0.1", "-p", &port, "-P", path, "-o", "3"];
    let output_text = output_text(&run_tool("h2spec", &args)?);
    println!("{output_text}");
    let count = |what: &str| -> usize {
        let before = output_text
            .rsplit_once(what)
            .unwrap_or_else(|| panic!("{output_text}"))
            .0;
        before.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(count(" passed, ") >= 100, "{output_text}");
    // `× 2: Sends …`, then the expected and the actual result.
    let (_, failures) = output_text.split_once("Failures:").unwrap_or_default();
    let failed = failures.split('×').skip(1).map(|case| {
        let (name, rest) = case.split_once('\n').unwrap_or((case, ""));
        let name = name.split_once(": ").map_or(name, |(_, name)| name);
        let saw = rest.split_once("Actual: ").map_or("", |(_, saw)| saw);
        let saw = saw.lines().next().unwrap_or_default();
        (name.trim().to_owned(), saw.trim().to_owned())
    });
    let failed: Vec<_> = failed.collect();
    assert_eq!(failed.len(), count(" failed"), "{output_text}");
    Some(failed)
}

/// An invalid preface is a malformed request of HTTP/1.1: the answer is 400 and the end of the
/// connection, as required. h2spec takes the answer for a truncated frame.
fn is_answer_in_http1(name: &str, saw: &str) -> bool {
    name == "Sends invalid connection preface"
        && saw.contains("note that the frame header looked like an HTTP/1.1 header")
}

/// Cases with an error in a request that has not ended. RFC 9113, section 8.1, lets a server that
/// does not need the rest answer first and then send NO_ERROR: the error then arrives on a closed
/// stream and is ignored, by section 5.1. If the error arrives first, the case passes; the order is
/// a matter of timing.
const MISTAKES_AFTER_AN_ANSWER: &[&str] = &[
    "Sends a HEADERS frame that contains a pseudo-header field as trailers",
    "Sends a HEADERS frame with the \"content-length\" header field which does not equal the DATA frame payload length",
    "Sends a HEADERS frame with the \"content-length\" header field which does not equal the sum of the multiple DATA frames payload length",
    "Sends a second HEADERS frame without the END_STREAM flag",
    "Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream",
    "closed: Sends a DATA frame after sending RST_STREAM frame",
    "closed: Sends a HEADERS frame after sending RST_STREAM frame",
];

/// Does it show that an answer came before the mistake: its last frame, or NO_ERROR after it?
fn is_early_answer(name: &str, saw: &str) -> bool {
    let mut frames = ["DATA Frame (", "RST_STREAM Frame ("].iter();
    MISTAKES_AFTER_AN_ANSWER.contains(&name)
        && frames.any(|frame| saw.starts_with(frame))
        && saw.ends_with("stream_id:1)")
}

#[test]
fn h2spec_finds_nothing_where_files_are_served() {
    let (_folder, server) = site();
    let Some(failed) = h2spec(&server, "/small.txt") else {
        return;
    };
    for (name, saw) in failed {
        assert!(
            is_answer_in_http1(&name, &saw) || is_early_answer(&name, &saw),
            "{name}: {saw}"
        );
    }
}

/// The service reads the whole body first, so no answer is early and every error is found.
#[test]
fn h2spec_finds_nothing_where_bodies_are_read() {
    use axum::http::StatusCode;
    use axum::response::IntoResponse;

    let folder = Folder::new();
    let read = |request: axum::extract::Request| async move {
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await;
        // A reply with a body: the cases that close its window have something to wait for.
        body.map_or(StatusCode::BAD_REQUEST.into_response(), |body| {
            format!("read {} bytes", body.len()).into_response()
        })
    };
    let app = axum::Router::new().fallback(read);
    let server = TestServer::with_service(&folder, |_| {}, app);
    let Some(failed) = h2spec(&server, "/") else {
        return;
    };
    for (name, saw) in failed {
        // The stream is reset, as required, but with hyper's code if hyper first finds that it can
        // no longer answer.
        let is_other_reset =
            name.starts_with("Sends multiple WINDOW_UPDATE") && saw.starts_with("RST_STREAM Frame");
        assert!(
            is_answer_in_http1(&name, &saw) || is_other_reset,
            "{name}: {saw}"
        );
    }
}

#[test]
fn a_browser_fetches_a_folder_of_a_thousand_files() {
    let folder = Folder::new();
    for n in 0..1000 {
        folder.write(&format!("img/{n:04}.svg"), format!("<svg id='{n}'/>"));
    }
    let server = TestServer::files(&folder.0);
    let page = server.get("/img/", "").text();
    assert_eq!(page.matches(".svg\"").count(), 1000);
    let got = folder.0.join("got");
    std::fs::create_dir(&got).unwrap();
    // As a browser over HTTP/1.1: six connections.
    let pattern = server.url("/img/[0000-0999].svg");
    let output = got.join("#1").to_str().unwrap().to_owned();
    let args = [
        "-sS",
        "--max-time",
        "60",
        "--fail",
        "--parallel",
        "--parallel-max",
        "6",
        "--http1.1",
        "-o",
        &output,
        &pattern,
    ];
    if let Some(done) = run_tool("curl", &args) {
        assert!(done.status.success(), "{}", output_text(&done));
        for n in 0..1000 {
            let file = std::fs::read_to_string(got.join(format!("{n:04}"))).unwrap();
            assert_eq!(file, format!("<svg id='{n}'/>"));
        }
    }
    // Over HTTP/2: one connection, as many streams at a time as the server takes.
    let urls: Vec<_> = (0..1000)
        .map(|n| server.url(&format!("/img/{n:04}.svg")))
        .collect();
    let mut args = vec!["-nv"];
    args.extend(urls.iter().map(String::as_str));
    let Some(done) = run_tool("nghttp", &args) else {
        return;
    };
    assert_eq!(output_text(&done).matches(":status: 200").count(), 1000);
}
