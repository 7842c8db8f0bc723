//! Tests that a program which runs `axum::serve` on tokio's thread gets a warning.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use axum::Router;
use axum::routing::get;
use upshift::Runtime;

use crate::child::child;

/// Environment variable that is set in the child process.
const CHILD: &str = "UPSHIFT_TEST_SERVES_ON_TOKIO";

/// The child serves until its parent has read the warning.
#[test]
fn a_server_on_tokios_thread_causes_a_warning() {
    if std::env::var_os(CHILD).is_some() {
        return serve_on_tokio();
    }
    let mut child = child("on_tokio::a_server_on_tokios_thread_causes_a_warning")
        .env(CHILD, "1")
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let warning = lines
        .map_while(Result::ok)
        .find(|line| line.contains("tokio listens on"));
    child.kill().unwrap();
    child.wait().unwrap();
    let warning = warning.expect("the child ended without the warning");
    assert!(warning.contains("127.0.0.1:"), "{warning}");
    assert!(
        warning.contains("upshift::axum::serve(listener, app)"),
        "{warning}"
    );
}

fn serve_on_tokio() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let app = Router::new().route("/", get(|| async { "hello" }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = async { _ = axum::serve(listener, app).await };
        upshift::spawn(server, upshift::Priority::Inherit).detach();
        let client = upshift::net::TcpStream::connect(address).await.unwrap();
        // The child ends after a minute if its parent has ended.
        upshift::time::sleep(std::time::Duration::from_secs(60)).await;
        drop(client);
    });
}
