//! Requests files and folders that the server's user may not read.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::harness::{Folder, PROGRAM, Server, wait_until};

/// Debian's `nobody`, without privileges on any system.
const USER: u32 = 65_534;

fn permit(folder: &Folder, name: &str, mode: u32) {
    fs::set_permissions(folder.0.join(name), Permissions::from_mode(mode)).unwrap();
}

/// Starts a server of `FOLDER/root` as an unprivileged user. Its errors are in `FOLDER/stderr`.
fn start(folder: &Folder) -> Server {
    let is_root = rustix::process::geteuid().is_root();
    // The unprivileged user may be unable to reach the program by its path.
    let program = File::open(PROGRAM).unwrap();
    let mut command = if is_root {
        Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
    } else {
        Command::new(PROGRAM)
    };
    rustix::io::fcntl_setfd(&program, rustix::io::FdFlags::empty()).unwrap();
    command
        .args(["serve", "root", "--listen", "127.0.0.1:0", "--vcpus", "1"])
        .current_dir(&folder.0)
        .env("UPSHIFT_DAEMON_SOCKET", folder.0.join("daemon"))
        .stdin(Stdio::null())
        .stderr(File::create(folder.0.join("stderr")).unwrap());
    if is_root {
        command.uid(USER).gid(USER);
    }
    Server::launch(&mut command).unwrap_or_else(|| panic!("{}", folder.read("stderr")))
}

fn status(server: &Server, path: &str, headers: &str) -> String {
    let answer = server.get(path, headers);
    answer.get(9..12).unwrap_or_default().to_owned()
}

#[test]
fn an_unreadable_file_or_folder_is_403_and_a_line_names_the_path_and_the_user() {
    let folder = Folder::new();
    fs::create_dir_all(folder.0.join("root/shut")).unwrap();
    fs::create_dir_all(folder.0.join("root/unlistable")).unwrap();
    for name in [
        "root/secret.txt",
        "root/open.css",
        "root/open.css.gz",
        "root/shut/index.html",
        "root/unlistable/index.html",
    ] {
        folder.write(name, "text");
    }
    permit(&folder, "root/secret.txt", 0);
    permit(&folder, "root/open.css.gz", 0);
    permit(&folder, "root/shut", 0);
    permit(&folder, "root/unlistable", 0o111);
    let server = start(&folder);
    let root = folder.0.canonicalize().unwrap().join("root");
    for (path, named) in [
        ("/secret.txt", "secret.txt"),
        ("/shut/", "shut"),
        ("/shut/index.html", "shut/index.html"),
    ] {
        let line = format!("upshift serve: {}", root.join(named).display());
        wait_until(&line, || {
            assert_eq!(status(&server, path, ""), "403", "{path}");
            // The server logs at most one such line per second.
            thread::sleep(Duration::from_millis(100));
            let stderr_text = folder.read("stderr");
            let mut lines = stderr_text
                .lines()
                .filter(|stderr_line| stderr_line.starts_with(&line));
            lines.any(|stderr_line| {
                stderr_line.contains("Permission denied")
                    && stderr_line.contains("the server runs as user ")
            })
        });
    }
    if rustix::process::geteuid().is_root() {
        assert!(folder.read("stderr").contains(&format!("user {USER}\n")));
    }
    // An unreadable compressed file counts as absent; a folder that cannot be listed may have an
    // index.
    let gzip = "accept-encoding: gzip\r\n";
    assert_eq!(status(&server, "/open.css", gzip), "200");
    assert_eq!(status(&server, "/unlistable/", ""), "200");
    assert_eq!(status(&server, "/unlistable", ""), "308");
    assert_eq!(status(&server, "/none", ""), "404");
    permit(&folder, "root/shut", 0o755);
    permit(&folder, "root/unlistable", 0o755);
}

#[test]
fn a_root_that_cannot_be_read_is_403_and_not_404() {
    let folder = Folder::new();
    fs::create_dir(folder.0.join("root")).unwrap();
    let mut index = File::create(folder.0.join("root/index.html")).unwrap();
    index.write_all(b"hi").unwrap();
    permit(&folder, "root", 0);
    let server = start(&folder);
    assert_eq!(status(&server, "/", ""), "403");
    wait_until("a line with the path", || {
        let root = folder.0.canonicalize().unwrap().join("root");
        folder.read("stderr").contains(root.to_str().unwrap())
    });
    permit(&folder, "root", 0o755);
}
