//! Listening on a Unix socket that has a path.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Device, inode, and, since inodes are used again, when it was made, if the file system knows.
type Identity = (u64, u64, Option<SystemTime>);

fn identity(found: &fs::Metadata) -> Identity {
    (found.dev(), found.ino(), found.created().ok())
}

/// The file of a socket that listens. Dropped, it is removed, unless another one has its path by now.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    is: Identity,
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| identity(&found) == self.is) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens on a path. What a server has left there that did not end in order is removed; a server that still listens is not disturbed.
/// `mode`: the permissions of the file, which never has more than these. By default what the umask leaves.
pub(crate) fn listen(
    path: &Path,
    mode: Option<u32>,
    backlog: i32,
) -> io::Result<(UnixListener, SocketFile)> {
    let address = address(path)?;
    make_room(path, &address)?;
    let socket = stream(SocketFlags::CLOEXEC)?;
    if let Some(mode) = mode {
        // The kernel makes the file with the mode of the socket, less the umask.
        fchmod(&socket, Mode::from_raw_mode(mode))?;
    }
    net::bind(&socket, &address)?;
    let made = fs::symlink_metadata(path)?;
    let file = SocketFile {
        path: path.to_owned(),
        is: identity(&made),
    };
    if let Some(mode) = mode {
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    net::listen(&socket, backlog)?;
    Ok((UnixListener::from(socket), file))
}

fn stream(flags: SocketFlags) -> io::Result<std::os::fd::OwnedFd> {
    Ok(net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|error| match error {
        Errno::NAMETOOLONG => {
            let why = "the path is too long: 108 bytes at most";
            io::Error::new(io::ErrorKind::InvalidFilename, why)
        }
        error => error.into(),
    })
}

/// Removes a socket without a listener.
fn make_room(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    let error = |why| io::Error::new(io::ErrorKind::AddrInUse, why);
    if !found.file_type().is_socket() {
        return Err(error("there is something else of this name, no socket"));
    }
    // Does not wait for a server that is busy.
    let probe = stream(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    match net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => Err(error("another server listens there")),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Removed when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("upshift-socket-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_socket_has_the_mode_asked_for_and_goes_with_its_listener() {
        let folder = Folder::new("mode");
        let path = folder.0.join("socket");
        let (listener, file) = listen(&path, Some(0o666), 4).unwrap();
        let mode = |path| fs::metadata(path).unwrap().mode() & 0o777;
        // Whatever the umask is.
        assert_eq!(mode(&path), 0o666);
        UnixStream::connect(&path).unwrap();
        let taken = listen(&path, None, 4).unwrap_err().to_string();
        assert!(taken.contains("another server"), "{taken}");
        drop((listener, file));
        assert!(!path.exists());
    }

    #[test]
    fn what_a_dead_server_has_left_is_replaced_and_nothing_else() {
        let folder = Folder::new("stale");
        let path = folder.0.join("socket");
        // The file of a listener of the standard library stays.
        drop(UnixListener::bind(&path).unwrap());
        let (first, first_file) = listen(&path, Some(0o600), 4).unwrap();
        drop(first);
        // The times of files are those of the kernel's ticks.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let (_second, _file) = listen(&path, Some(0o600), 4).unwrap();
        // That of a successor stays, too.
        drop(first_file);
        UnixStream::connect(&path).unwrap();
        let other = folder.0.join("file");
        fs::write(&other, "text").unwrap();
        assert!(listen(&other, None, 4).is_err());
        assert_eq!(fs::read_to_string(&other).unwrap(), "text");
    }

    #[test]
    fn a_path_that_is_too_long_is_said_to_be() {
        let folder = Folder::new("long");
        let room = 108 - folder.0.as_os_str().len() - 1;
        let path = folder.0.join("x".repeat(room));
        drop(listen(&path, None, 4).unwrap());
        let long = listen(&folder.0.join("x".repeat(room + 1)), None, 4);
        let said = long.unwrap_err().to_string();
        assert!(said.contains("108 bytes"), "{said}");
    }

    #[test]
    fn a_server_that_does_not_accept_is_not_waited_for() {
        let folder = Folder::new("busy");
        let path = folder.0.join("socket");
        let (_listener, _file) = listen(&path, None, 0).unwrap();
        let mut clients = Vec::new();
        loop {
            let client = stream(SocketFlags::NONBLOCK).unwrap();
            let address = SocketAddrUnix::new(&path).unwrap();
            if net::connect(&client, &address) == Err(Errno::AGAIN) {
                break;
            }
            clients.push(client);
        }
        assert!(listen(&path, None, 0).is_err());
    }
}
