//! Load generators and clients that others wrote: no errors, the right bytes, the right counts.

use crate::harness::{Folder, Running, said, tool};

fn site() -> (Folder, Running) {
    let folder = Folder::new();
    folder.write("small.txt", "small");
    let server = Running::files(&folder.0);
    (folder, server)
}

/// Keeps debug builds on loaded machines within their time.
const SOME: &str = "2000";

#[test]
fn ab_completes_its_requests_with_and_without_keep_alive() {
    let (_folder, server) = site();
    for keep_alive in [true, false] {
        let url = server.url("/small.txt");
        let mut args = vec!["-q", "-n", SOME, "-c", "20"];
        if keep_alive {
            args.push("-k");
        }
        args.push(&url);
        let Some(output) = tool("ab", &args) else {
            return;
        };
        let said = said(&output);
        assert!(
            said.contains(&format!("Complete requests:      {SOME}")),
            "{said}"
        );
        assert!(said.contains("Failed requests:        0"), "{said}");
        assert!(!said.contains("Non-2xx"), "{said}");
    }
}

#[test]
fn wrk_sees_no_errors() {
    let (_folder, server) = site();
    let url = server.url("/plaintext");
    let patient = ["--timeout", "20s"];
    let args = [&["-t1", "-c50", "-d1s"][..], &patient, &[&url]].concat();
    let Some(output) = tool("wrk", &args) else {
        return;
    };
    let said = said(&output);
    assert!(said.contains("requests in"), "{said}");
    assert!(
        !said.contains("Socket errors") && !said.contains("Non-2xx"),
        "{said}"
    );
}

#[test]
fn h2load_completes_its_requests_over_both_versions() {
    let (_folder, server) = site();
    let url = server.url("/small.txt");
    for version in [&[][..], &["--h1"]] {
        let mut args = vec!["-n", SOME, "-c", "10", "-m", "20"];
        args.extend_from_slice(version);
        args.push(&url);
        let Some(output) = tool("h2load", &args) else {
            return;
        };
        let said = said(&output);
        assert!(
            said.contains(&format!("{SOME} succeeded, 0 failed, 0 errored, 0 timeout")),
            "{said}"
        );
        assert!(
            said.contains(&format!("status codes: {SOME} 2xx")),
            "{said}"
        );
    }
}

#[test]
fn nghttp_fetches_with_many_streams() {
    let (_folder, server) = site();
    let url = server.url("/small.txt");
    let Some(output) = tool("nghttp", &["-nv", "-m", "50", &url]) else {
        return;
    };
    let said = said(&output);
    assert_eq!(said.matches(":status: 200").count(), 50, "{said}");
}

#[test]
fn h2spec_finds_nothing() {
    let (_folder, server) = site();
    let port = server.address.port().to_string();
    let args = [
        "-h",
        "127.0.0.1",
        "-p",
        &port,
        "-P",
        "/small.txt",
        "-o",
        "3",
    ];
    let Some(output) = tool("h2spec", &args) else {
        return;
    };
    let said = said(&output);
    // An invalid preface is a broken request of HTTP/1.1, answered by 400 and the end of the connection, which is what has
    // to end. h2spec takes the answer for a frame that is cut short.
    let is_answer = said.contains(", 1 failed")
        && said
            .contains("unexpected EOF, note that the frame header looked like an HTTP/1.1 header");
    assert!(said.contains(", 0 failed") || is_answer, "{said}");
}

#[test]
fn a_browser_fetches_a_folder_of_a_thousand_files() {
    let folder = Folder::new();
    for n in 0..1000 {
        folder.write(&format!("img/{n:04}.svg"), format!("<svg id='{n}'/>"));
    }
    let server = Running::files(&folder.0);
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
    if let Some(done) = tool("curl", &args) {
        assert!(done.status.success(), "{}", said(&done));
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
    let Some(done) = tool("nghttp", &args) else {
        return;
    };
    assert_eq!(said(&done).matches(":status: 200").count(), 1000);
}
