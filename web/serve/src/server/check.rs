//! Checks the folders, certificates, addresses and paths of a server that is not started.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use crate::config::{Address, BindTo, Config};
use crate::server::bind::{explain, port_holder};
use crate::sites::Sites;

/// Names of the programs that may hold the port of the checked server, namely the running server
/// itself, and systemd for a `.socket` unit.
const OWN_COMMANDS: [&str; 2] = ["upshift", "systemd"];
/// Largest length of the path of a Unix socket, in bytes.
const MAX_SOCKET_PATH: usize = 108;

pub(super) fn check(config: &Config) -> Result<Vec<String>, String> {
    config.check()?;
    let mut faults = Vec::new();
    let mut warnings = Vec::new();
    match Sites::open(config) {
        Ok(sites) => warnings = sites.warnings,
        Err(error) => faults.push(error),
    }
    for (index, address) in config.listen.iter().enumerate() {
        let earlier = &config.listen[..index];
        let fault = match earlier
            .iter()
            .find(|first| overlap(&first.bind_to, &address.bind_to))
        {
            Some(first) => Err(format!(
                "cannot listen on {address}: `listen` has {first} already, keep one of the two"
            )),
            None => check_address(address),
        };
        faults.extend(fault.err());
    }
    let paths = [
        ("access log", &config.access_log),
        ("control", &config.control),
    ];
    for (name, path) in paths {
        let path = path.as_ref().filter(|path| path.as_os_str() != "-");
        let error = path.and_then(|path| match name {
            "control" => check_socket(path).err(),
            _ => check_writable(path).err(),
        });
        if let (Some(path), Some(error)) = (path, error) {
            faults.push(format!("{name} {}: {error}", path.display()));
        }
    }
    if faults.is_empty() {
        Ok(warnings)
    } else {
        Err(faults.join("\n"))
    }
}

fn check_address(address: &Address) -> Result<(), String> {
    let (ip, result) = match &address.bind_to {
        BindTo::Ip(ip) => (*ip, bind(*ip)),
        BindTo::Port(port) => {
            let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port));
            let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port));
            match bind(v6) {
                Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => (v4, bind(v4)),
                result => (v6, result),
            }
        }
        BindTo::Unix { path, .. } => {
            return check_socket(path)
                .map_err(|error| format!("cannot listen on {address}: {error}"));
        }
    };
    let is_own_port = || port_holder(ip).is_some_and(|(pid, _)| is_own(pid));
    match result {
        Ok(()) => Ok(()),
        Err(Errno::ADDRINUSE) if is_own_port() => Ok(()),
        Err(error) => Err(format!(
            "cannot listen on {address}: {}",
            explain(ip, &error.into())
        )),
    }
}

/// Returns whether a socket that listens on `first` prevents another socket from listening on
/// `second`.
fn overlap(first: &BindTo, second: &BindTo) -> bool {
    let file = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (first, second) {
        (BindTo::Unix { path: first, .. }, BindTo::Unix { path: second, .. }) => {
            file(first) == file(second)
        }
        (BindTo::Unix { .. }, _) | (_, BindTo::Unix { .. }) => false,
        // The kernel chooses a free port for 0.
        (BindTo::Port(first), BindTo::Port(second)) => first == second && *first != 0,
        (BindTo::Port(port), BindTo::Ip(ip)) | (BindTo::Ip(ip), BindTo::Port(port)) => {
            ip.port() == *port && *port != 0
        }
        (BindTo::Ip(first), BindTo::Ip(second)) => {
            first.port() == second.port()
                && first.port() != 0
                && (covers(first.ip(), second.ip()) || covers(second.ip(), first.ip()))
        }
    }
}

/// Returns whether a socket on `address` also receives the connections to `other`.
fn covers(address: IpAddr, other: IpAddr) -> bool {
    let is_same_family = address.is_ipv4() == other.is_ipv4();
    address == other
        || address.is_unspecified() && (is_same_family || address.is_ipv6() && !is_v6_only())
}

fn is_v6_only() -> bool {
    let setting = fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    setting.is_ok_and(|setting| setting.trim() == "1")
}

fn is_own(pid: u32) -> bool {
    let command = fs::read_to_string(format!("/proc/{pid}/comm"));
    command.is_ok_and(|command| OWN_COMMANDS.contains(&command.trim()))
}

/// Binds a socket without listening, so that no client can connect.
fn bind(address: SocketAddr) -> Result<(), Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &address)
}

fn check_socket(path: &Path) -> io::Result<()> {
    if path.as_os_str().len() > MAX_SOCKET_PATH {
        return Err(io::Error::other("the path is too long: 108 bytes at most"));
    }
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => Err(io::Error::other(
            "there is a file that is no socket: remove it",
        )),
        _ => check_folder(path),
    }
}

fn check_writable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(access(path, Access::WRITE_OK)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => check_folder(path),
        Err(error) => Err(error),
    }
}

fn check_folder(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
        let folder = folder.display();
        io::Error::other(format!("no file can be made in {folder}: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap_of(first: &str, second: &str) -> bool {
        let bind_to = |text: &str| text.parse::<Address>().unwrap().bind_to;
        let (first, second) = (bind_to(first), bind_to(second));
        assert_eq!(overlap(&first, &second), overlap(&second, &first));
        overlap(&first, &second)
    }

    #[test]
    fn addresses_overlap_if_one_socket_blocks_the_other() {
        for (first, second) in [
            ("127.0.0.1:21080", "127.0.0.1:21080"),
            ("21080", "127.0.0.1:21080,plain"),
            (":21080", ":21080,plain"),
            (":21080", "127.0.0.1:21080"),
            (":21080", "[::1]:21080"),
            ("0.0.0.0:21080", "10.0.0.1:21080"),
            ("[::]:21080", "[::1]:21080"),
            ("unix:/run/a", "unix:/run/a,mode=600"),
        ] {
            assert!(overlap_of(first, second), "{first} {second}");
        }
        for (first, second) in [
            ("127.0.0.1:21080", "127.0.0.1:21081"),
            ("127.0.0.1:21080", "127.0.0.2:21080"),
            ("127.0.0.1:21080", "[::1]:21080"),
            ("0.0.0.0:21080", "[::1]:21080"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            (":0", ":0"),
            (":0", "127.0.0.1:0"),
            ("unix:/run/a", "unix:/run/b"),
            ("unix:/run/a", ":21080"),
        ] {
            assert!(!overlap_of(first, second), "{first} {second}");
        }
    }
}
