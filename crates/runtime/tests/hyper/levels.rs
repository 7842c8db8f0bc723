//! Requests at levels of their own.

use upshift::Level;

use crate::app::Running;

fn levelled() -> Running {
    Running::start(1, |server| {
        server.receive_level(Level::at::<3>()).levels(|request| {
            if request.uri().path().starts_with("/urgent") {
                Level::at::<1>()
            } else {
                Level::at::<40>()
            }
        })
    })
}

#[test]
fn each_request_of_a_connection_runs_at_its_level() {
    let server = levelled();
    let request = |path, more| format!("GET {path} HTTP/1.1\r\nhost: test\r\n{more}\r\n");
    let answers = server.talk(
        request("/level", "")
            + &request("/urgent/level", "")
            + &request("/level", "")
            + &request("/urgent/level", "connection: close\r\n"),
    );
    let levels: Vec<_> = answers
        .split("\r\n\r\n")
        .skip(1)
        .map(|body| body.split("HTTP/1.1").next().unwrap())
        .collect();
    assert_eq!(levels, ["40", "1", "40", "1"], "{answers}");
}

#[test]
fn streams_of_one_http2_connection_have_levels_of_their_own() {
    let server = levelled();
    let address = server.address;
    let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let client = crate::client::http2();
        for (path, level) in [("/level", "40"), ("/urgent/level", "1"), ("/level", "40")] {
            let uri = format!("http://{address}{path}").parse().unwrap();
            let response = client.get(uri).await.unwrap();
            assert_eq!(crate::client::text(response).await, level);
        }
    });
}
