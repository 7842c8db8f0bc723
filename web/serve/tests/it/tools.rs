//! Tests with other projects' load generators and clients. These tools must report no errors, and
//! receive the expected bytes and numbers of responses.

use crate::harness::{Folder, TestServer, output_text, tool};

fn site() -> (Folder, TestServer) {
    let folder = Folder::new();
    folder.write("small.txt", "small");
    let server = TestServer::files(&folder.0);
    (folder, server)
}

/// Number of requests of a load generator, which is small enough for a debug build on a loaded
/// machine.
const REQUESTS: &str = "2000";

#[test]
fn load_generators_see_no_errors() {
    let (_folder, server) = site();
    let (file, text) = (server.url("/small.txt"), server.url("/plaintext"));
    let succeeded = format!("{REQUESTS} succeeded, 0 failed, 0 errored, 0 timeout");
    let statuses = format!("status codes: {REQUESTS} 2xx");
    let complete = format!("Complete requests:      {REQUESTS}");
    let ab_lines = [&complete[..], "Failed requests:        0"];
    let h2load_lines = [&succeeded[..], &statuses];
    let timeout = "--timeout=20s";
    for (name, args, expected) in [
        (
            "ab",
            &["-q", "-n", REQUESTS, "-c", "20", "-k", &file][..],
            &ab_lines[..],
        ),
        ("ab", &["-q", "-n", REQUESTS, "-c", "20", &file], &ab_lines),
        (
            "wrk",
            &["-t1", "-c50", "-d1s", timeout, &text],
            &["requests in"],
        ),
        (
            "h2load",
            &["-n", REQUESTS, "-c", "10", "-m", "20", &file],
            &h2load_lines,
        ),
        (
            "h2load",
            &["-n", REQUESTS, "-c", "10", "-m", "20", "--h1", &file],
            &h2load_lines,
        ),
    ] {
        let Some(output) = tool(name, args) else {
            continue;
        };
        let report = output_text(&output);
        assert!(
            expected.iter().all(|line| report.contains(line)),
            "{name}: {report}"
        );
        let errors = ["Socket errors", "Non-2xx"];
        assert!(
            !errors.iter().any(|line| report.contains(line)),
            "{name}: {report}"
        );
    }
}

/// Runs h2spec against `path`. Returns the name of each failed case and h2spec's observation.
fn h2spec(server: &TestServer, path: &str) -> Option<Vec<(String, String)>> {
    let port = server.address.port().to_string();
    let args = ["-h", "127.0.0.1", "-p", &port, "-P", path, "-o", "3"];
    let report = output_text(&tool("h2spec", &args)?);
    println!("{report}");
    let count = |label: &str| -> usize {
        let before = report
            .rsplit_once(label)
            .unwrap_or_else(|| panic!("{report}"))
            .0;
        before.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(count(" passed, ") >= 100, "{report}");
    // A failure is `× 2: Sends …`, followed by the expected and the actual result.
    let (_, failures) = report.split_once("Failures:").unwrap_or_default();
    let failed = failures.split('×').skip(1).map(|case| {
        let (name, rest) = case.split_once('\n').unwrap_or((case, ""));
        let name = name.split_once(": ").map_or(name, |(_, name)| name);
        let observed = rest
            .split_once("Actual: ")
            .map_or("", |(_, observed)| observed);
        let observed = observed.lines().next().unwrap_or_default();
        (name.trim().to_owned(), observed.trim().to_owned())
    });
    let failed: Vec<_> = failed.collect();
    assert_eq!(failed.len(), count(" failed"), "{report}");
    Some(failed)
}

/// Returns whether a failed case is the one with an invalid preface. Such a preface is a malformed
/// HTTP/1.1 request, which the server answers with 400 before it closes the connection, as
/// required. h2spec takes the response for a truncated frame.
fn is_http1_response(name: &str, observed: &str) -> bool {
    name == "Sends invalid connection preface"
        && observed.contains("note that the frame header looked like an HTTP/1.1 header")
}

/// Cases with an error in a request that has not ended. RFC 9113, section 8.1, permits a server
/// that does not need the rest of the request to respond first and then to send NO_ERROR: the error
/// then arrives on a closed stream and is ignored, by section 5.1. The case passes only if the
/// error arrives first, which depends on timing.
const ERRORS_AFTER_A_RESPONSE: &[&str] = &[
    "Sends a HEADERS frame that contains a pseudo-header field as trailers",
    "Sends a HEADERS frame with the \"content-length\" header field which does not equal the DATA frame payload length",
    "Sends a HEADERS frame with the \"content-length\" header field which does not equal the sum of the multiple DATA frames payload length",
    "Sends a second HEADERS frame without the END_STREAM flag",
    "Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream",
    "closed: Sends a DATA frame after sending RST_STREAM frame",
    "closed: Sends a HEADERS frame after sending RST_STREAM frame",
];

/// Returns whether the observation shows that the response preceded the error, that is, contains
/// the last frame of the response, or NO_ERROR after it.
fn is_early_response(name: &str, observed: &str) -> bool {
    let mut frames = ["DATA Frame (", "RST_STREAM Frame ("].iter();
    ERRORS_AFTER_A_RESPONSE.contains(&name)
        && frames.any(|frame| observed.starts_with(frame))
        && observed.ends_with("stream_id:1)")
}

#[test]
fn h2spec_finds_no_error_in_a_file_server() {
    let (_folder, server) = site();
    let Some(failed) = h2spec(&server, "/small.txt") else {
        return;
    };
    for (name, observed) in failed {
        assert!(
            is_http1_response(&name, &observed) || is_early_response(&name, &observed),
            "{name}: {observed}"
        );
    }
}

/// The service reads the whole body before it responds, so every error precedes the response. No
/// case may fail, except for those that are explained below.
#[test]
fn h2spec_finds_no_error_in_a_service_that_reads_bodies() {
    use axum::http::StatusCode;
    use axum::response::IntoResponse;

    let folder = Folder::new();
    let read = |request: axum::extract::Request| async move {
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await;
        // The response has a body, because some cases close its window.
        body.map_or(StatusCode::BAD_REQUEST.into_response(), |body| {
            format!("read {} bytes", body.len()).into_response()
        })
    };
    let app = axum::Router::new().fallback(read);
    let server = TestServer::with_service(&folder, |_| {}, app);
    let Some(failed) = h2spec(&server, "/") else {
        return;
    };
    for (name, observed) in failed {
        // The stream is reset, as required, but with another code if hyper first notices that it
        // can no longer respond.
        let is_other_reset = name.starts_with("Sends multiple WINDOW_UPDATE")
            && observed.starts_with("RST_STREAM Frame");
        assert!(
            is_http1_response(&name, &observed) || is_other_reset,
            "{name}: {observed}"
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
    let downloads = folder.0.join("got");
    std::fs::create_dir(&downloads).unwrap();
    // Like a browser over HTTP/1.1, curl uses six connections.
    let pattern = server.url("/img/[0000-0999].svg");
    let output = downloads.join("#1").to_str().unwrap().to_owned();
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
    if let Some(succeeded) = tool("curl", &args) {
        assert!(succeeded.status.success(), "{}", output_text(&succeeded));
        for n in 0..1000 {
            let file = std::fs::read_to_string(downloads.join(format!("{n:04}"))).unwrap();
            assert_eq!(file, format!("<svg id='{n}'/>"));
        }
    }
    // Over HTTP/2, nghttp uses one connection, with as many concurrent streams as the server
    // permits.
    let urls: Vec<_> = (0..1000)
        .map(|n| server.url(&format!("/img/{n:04}.svg")))
        .collect();
    let mut args = vec!["-nv"];
    args.extend(urls.iter().map(String::as_str));
    let Some(succeeded) = tool("nghttp", &args) else {
        return;
    };
    assert_eq!(
        output_text(&succeeded).matches(":status: 200").count(),
        1000
    );
}
