//! [`SocketFile`]: the file of a listening socket, and the directories that lead to it.
//!
//! The daemon acts with root's rights on a path that a configuration names. Two rules keep another
//! user from redirecting it to a file of root's:
//!
//! * Every directory on the way belongs to root or to the daemon's user, and nobody else may write
//!   to it ([`check_directories`]).
//! * Owner and mode are changed through a descriptor of the file that was made, never by its name.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags};

/// The file of a socket. Dropping it removes the file, unless its name means another file by then.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Open as a path: until it is closed no other file has its inode.
    file: File,
}

impl SocketFile {
    /// Takes the file of a socket that was just bound to `path`.
    ///
    /// # Errors
    /// The kernel's; another one if there is something else than a socket.
    pub(crate) fn bound_to(path: &Path) -> io::Result<SocketFile> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        if !file.metadata()?.file_type().is_socket() {
            let error = "another program has replaced the socket";
            return Err(io::Error::other(error));
        }
        Ok(SocketFile {
            path: path.to_path_buf(),
            file,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file to a group.
    pub(crate) fn set_group(&self, group: u32) -> io::Result<()> {
        let (group, flags) = (Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH);
        Ok(rustix::fs::chownat(&self.file, "", None, group, flags)?)
    }

    /// Sets the permission bits of the file.
    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        // The link of an open descriptor leads to its file, even if the name means another one.
        // `fchmod` refuses a path descriptor.
        let opened = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        fs::set_permissions(opened, Permissions::from_mode(mode))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if is_at(&self.file, &self.path).unwrap_or(false) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether `path` still names the open `file`.
pub(crate) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Refuses a file that another user could replace: each directory on the way to `path` belongs to
/// root or to this user and nobody else may write to it. Above the last directory, one that all may
/// write is permitted if it is sticky (`/tmp`). Directories that do not exist are not looked at.
///
/// # Errors
/// The directory that another user may write to; the kernel's.
pub(crate) fn check_directories(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let Some(named) = path.parent() else {
        return Ok(());
    };
    let nearest = named.ancestors().find(|it| it.exists());
    let real = nearest.map(fs::canonicalize).transpose()?;
    let last = |it: &Path| it == named || (Some(named) == nearest && Some(it) == real.as_deref());
    for directory in named
        .ancestors()
        .chain(real.iter().flat_map(|it| it.ancestors()))
    {
        // The link itself, where it is one, and the directory that it leads to.
        for found in [fs::symlink_metadata(directory), fs::metadata(directory)] {
            match found {
                Ok(found) => check_directory(directory, &found, last(directory))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// The sticky bit: only its owner may rename or remove a file of the directory.
const STICKY: u32 = 0o1000;
/// Writable by the group or by everybody.
const SHARED: u32 = 0o022;

fn check_directory(directory: &Path, found: &fs::Metadata, last: bool) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let directory = directory.display();
    if ![0, own].contains(&found.uid()) && !is_unmapped(found.uid()) {
        return Err(io::Error::other(format!(
            "{directory} belongs to user {}, who could put another file there: `chown` it to root, or give another path",
            found.uid()
        )));
    }
    let sticky = found.mode() & STICKY != 0 && !last;
    if found.is_dir() && found.mode() & SHARED != 0 && !sticky {
        return Err(io::Error::other(format!(
            "others may write to {directory} and put another file there: give a path in a directory of the daemon's own"
        )));
    }
    Ok(())
}

/// Whether the user has no number in this user namespace. There the daemon has no rights of root's
/// over files of such users, among which is the machine's root.
fn is_unmapped(uid: u32) -> bool {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_first = map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    !is_first && number("/proc/sys/kernel/overflowuid") == Some(uid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A directory of the calling test's own, which goes when this is dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Folder {
            let name = format!("upshift-{test}-{}", std::process::id());
            let folder = Folder(std::env::temp_dir().join(name));
            fs::create_dir(&folder.0).unwrap();
            folder.chmod("", 0o755);
            folder
        }

        fn make(&self, name: &str) -> PathBuf {
            fs::create_dir(self.0.join(name)).unwrap();
            self.chmod(name, 0o755);
            self.0.join(name)
        }

        fn chmod(&self, name: &str, mode: u32) {
            fs::set_permissions(self.0.join(name), Permissions::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused() {
        let folder = Folder::new("written");
        folder.make("above");
        let socket = folder.make("above/last").join("d.sock");
        for (above, last, good) in [
            (0o755, 0o755, true),
            (0o755, 0o700, true),
            (0o755, 0o775, false),
            (0o755, 0o757, false),
            (0o755, 0o1777, false),
            (0o775, 0o755, false),
            (0o1777, 0o755, true),
        ] {
            folder.chmod("above", above);
            folder.chmod("above/last", last);
            let checked = check_directories(&socket);
            assert_eq!(checked.is_ok(), good, "{above:o} {last:o}: {checked:?}");
        }
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let folder = Folder::new("owned");
        let socket = folder.make("theirs").join("deeper/d.sock");
        if chown(folder.0.join("theirs"), Some(65_534), None).is_err() {
            eprintln!("skipped: needs root");
            return;
        }
        let error = check_directories(&socket).unwrap_err().to_string();
        assert!(error.contains("theirs belongs to user 65534"), "{error}");
    }

    #[test]
    fn a_link_is_held_to_what_it_leads_to() {
        let folder = Folder::new("linked");
        folder.make("open");
        symlink("open", folder.0.join("link")).unwrap();
        let socket = folder.0.join("link/d.sock");
        assert!(check_directories(&socket).is_ok());
        folder.chmod("open", 0o777);
        assert!(check_directories(&socket).is_err());
    }

    #[test]
    fn owner_and_mode_are_those_of_the_socket_whatever_has_its_name() {
        let folder = Folder::new("replaced");
        let (socket, secret) = (folder.0.join("d.sock"), folder.0.join("secret"));
        fs::write(&secret, "secret").unwrap();
        folder.chmod("secret", 0o600);
        let _listener = UnixListener::bind(&socket).unwrap();
        let file = SocketFile::bound_to(&socket).unwrap();
        file.set_mode(0o640).unwrap();
        assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o640);
        fs::remove_file(&socket).unwrap();
        symlink(&secret, &socket).unwrap();
        file.set_mode(0o666).unwrap();
        let group = fs::metadata(&secret).unwrap().gid();
        file.set_group(group).unwrap();
        assert_eq!(fs::metadata(&secret).unwrap().mode() & 0o777, 0o600);
        assert!(SocketFile::bound_to(&socket).is_err());
        drop(file);
        assert!(fs::symlink_metadata(&socket).is_ok(), "another file");
    }
}
