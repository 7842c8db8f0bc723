//! Checks the addresses on which a server listens.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::harness::{Folder, PROGRAM, Server, TIMEOUT};

fn ask(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let request = "GET /plaintext HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_port_without_an_address_is_served_on_ipv4_and_on_ipv6() {
    let folder = Folder::new();
    let has_ipv6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    for listen in [":0", "*:0"] {
        let log = format!("log{}", listen.len());
        let args = [
            "--listen",
            listen,
            "--vcpus",
            "1",
            "--access-log",
            &log,
            "--priority",
            "peer:127.0.0.0/8=3",
        ];
        let server = Server::try_start(&folder, &args)
            .unwrap_or_else(|| panic!("{}", folder.read("stderr")));
        let port = server.address().port();
        let answer = ask((Ipv4Addr::LOCALHOST, port).into());
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        if has_ipv6 {
            let answer = ask((Ipv6Addr::LOCALHOST, port).into());
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        } else {
            println!("skipped: there is no IPv6");
        }
        server.signal("TERM");
        assert_eq!(server.end().0, Some(0));
        // An IPv4 client appears with its IPv4 address, in the log and in rules.
        let log = folder.read(&log);
        let line = log.lines().find(|line| line.contains("\"127.0.0.1"));
        assert!(
            line.is_some_and(|line| line.contains("\"level\":3")),
            "{log}"
        );
    }
}

/// Runs a server in its own network namespace, after `setup`; returns the output of curl.
fn in_namespace(folder: &Folder, setup: &str) -> Option<String> {
    let script =
        format!("ip link set lo up && {setup} && exec {PROGRAM} serve --listen :36123 --vcpus 1");
    let mut command = Command::new("unshare");
    command
        .args(["--net", "sh", "-c", &script])
        .current_dir(&folder.0)
        .env("UPSHIFT_DAEMON_SOCKET", folder.0.join("daemon"))
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(folder.0.join("stderr")).unwrap());
    let server = Server::launch(&mut command)?;
    let pid = server.child.id().to_string();
    let asked = Command::new("nsenter")
        .args(["--net", "--target", &pid])
        .args(["curl", "-s", "-m", "20", "http://127.0.0.1:36123/plaintext"])
        .args(["http://[::1]:36123/plaintext"])
        .output();
    Some(String::from_utf8_lossy(&asked.ok()?.stdout).into_owned())
}

#[test]
fn a_port_without_an_address_does_not_depend_on_the_settings_of_ipv6() {
    let folder = Folder::new();
    for (setting, answers) in [
        ("net.ipv6.bindv6only=1", 2),
        ("net.ipv6.conf.all.disable_ipv6=1", 1),
    ] {
        let Some(output_text) = in_namespace(&folder, &format!("sysctl -q {setting}")) else {
            println!(
                "skipped: no namespace, or no sysctl: {}",
                folder.read("stderr")
            );
            return;
        };
        let greeting = "Hello, World!";
        assert_eq!(
            output_text.matches(greeting).count(),
            answers,
            "{setting}: {output_text}"
        );
    }
}
