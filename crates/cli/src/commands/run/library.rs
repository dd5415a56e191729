//! The library that is loaded into the server: a file, or what this program carries.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use martlet_cluster::fail::{Context as _, Fail, Outcome};
use rustix::fs::{MemfdFlags, SealFlags};

/// The name of its file.
const NAME: &str = "libmartlet_preload.so";
/// A program that does nothing, to see whether a library is loaded into it.
const PROBE: &str = "/bin/true";
/// What this program carries: it was built along with it, unless this is a debug build.
const CARRIED: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/carried.rs"));

/// A library that the loader of programs finds at a path, for as long as this value lives.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    /// Memory that the path names.
    _memory: Option<OwnedFd>,
}

impl Library {
    /// The `given` file, else what this program carries, else the file beside this program, or in `../lib` or `../lib/martlet` from there.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(given: Option<&Path>) -> Outcome<Library> {
        match (given, CARRIED) {
            (Some(file), _) => Library::at(&[file.to_owned()]),
            (None, Some(bytes)) => Library::in_memory(bytes).context("cannot give the library to servers from memory"),
            (None, None) => {
                let own = std::env::current_exe().context("cannot tell where this program is")?;
                let directory = own.parent().unwrap_or(Path::new("/"));
                Library::at(&["", "../lib", "../lib/martlet"].map(|place| directory.join(place).join(NAME)))
            }
        }
    }

    /// The system's loader ignores what it cannot load, and would start the server alone, with one line among the server's own.
    ///
    /// # Errors
    /// What it says.
    pub fn check(&self) -> Outcome {
        let mut probe = Command::new(PROBE);
        probe.env("LD_PRELOAD", &self.path).env_remove("MARTLET_RUN").stdin(Stdio::null()).stdout(Stdio::null());
        // Without that program the server is started as it is, and what the loader says stands among the server's own lines.
        let said = probe.output().map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stderr).into_owned());
        match said.lines().find(|line| line.contains("LD_PRELOAD")) {
            None => Ok(()),
            Some(why) => Err(Fail::failed(format_args!(
                "{} cannot be loaded into servers: {why}; allowed is {NAME} of this build",
                self.path.display()
            ))),
        }
    }

    /// The first of these files that is there.
    fn at(places: &[PathBuf]) -> Outcome<Library> {
        let found = places.iter().find_map(|place| place.canonicalize().ok()).map(|path| Library { path, _memory: None });
        found.ok_or_else(|| {
            let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
            Fail::absent(format_args!("{NAME} was not found; looked at {}; name it with --preload", places.join(", ")))
        })
    }

    /// These bytes, in memory that nobody can change any more and that goes when nobody has it. Nothing is written to a disk: a file there could be of another build, or
    /// where no program may be loaded from.
    fn in_memory(bytes: &[u8]) -> io::Result<Library> {
        let memory = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = rustix::io::write(&memory, rest)?;
            rest = &rest[written..];
        }
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
        // As another process sees it: the server is to have no descriptor more than it would have alone.
        let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        Ok(Library { path: path.into(), _memory: Some(memory) })
    }

    /// Where the server finds it.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_library_in_memory_is_read_by_its_path_and_cannot_be_changed() {
        let library = Library::in_memory(b"bytes of a library").expect("memory");
        assert_eq!(fs::read(library.path()).expect("it is there"), b"bytes of a library");
        let path = library.path().to_owned();
        assert!(fs::write(&path, b"other bytes").is_err());
        drop(library);
        assert!(!path.exists(), "nothing stays");
    }

    #[test]
    fn what_the_loader_does_not_take_is_refused_by_name() {
        let file = std::env::temp_dir().join(format!("martlet-no-library-{}", std::process::id()));
        fs::write(&file, "no library").expect("a file");
        let why = Library::find(Some(&file)).and_then(|library| library.check()).expect_err("no ELF").to_string();
        let _ = fs::remove_file(&file);
        assert!(why.contains("martlet-no-library-") && why.contains("cannot be preloaded"), "{why}");
    }

    #[test]
    fn a_library_that_is_not_there_is_named_with_the_places() {
        let absent = Path::new("/no/such/directory/library.so");
        let why = Library::find(Some(absent)).expect_err("there is none").to_string();
        assert!(why.contains("/no/such/directory/library.so"), "{why}");
    }
}
