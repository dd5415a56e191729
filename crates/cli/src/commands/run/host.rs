//! What the host's own tools are to know of the service: which process it is.

use std::path::PathBuf;

use martlet_cluster::fail::{Context as _, Fail, Outcome};

/// The file that names this process, for as long as the service runs.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes it. What an earlier service has left there is replaced, and nothing else.
    pub fn write(path: PathBuf) -> Outcome<PidFile> {
        if path.is_file() && !std::fs::read(&path).is_ok_and(|left| left.trim_ascii().iter().all(u8::is_ascii_digit)) {
            return Err(Fail::usage(format_args!(
                "the server's pid file is {}, which holds something else than the number of a process, and stays; allowed are a path where no file is, and a pid file \
                 that an earlier service has left",
                path.display()
            )));
        }
        std::fs::write(&path, own()).context(format_args!("cannot write {}", path.display()))?;
        Ok(PidFile(path))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A process that has taken it away has done what is to be done; and one that has put its own there keeps it.
        if self.0.is_file() && std::fs::read_to_string(&self.0).is_ok_and(|text| text == own()) {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

fn own() -> String {
    format!("{}\n", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_process_goes_with_it() {
        let path = std::env::temp_dir().join(format!("martlet-run-pid-{}", std::process::id()));
        let file = PidFile::write(path.clone()).expect("it is written");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), own());
        drop(file);
        assert!(!path.exists());
        std::fs::write(&path, "1\n").expect("as a killed service leaves it");
        let file = PidFile::write(path.clone()).expect("it is replaced");
        std::fs::write(&path, "1\n").expect("as a second service would");
        drop(file);
        assert_eq!(std::fs::read_to_string(&path).expect("not ours"), "1\n");
        std::fs::write(&path, "port 6379\n").expect("a file of another kind");
        let refused = PidFile::write(path.clone()).expect_err("it is no pid file").to_string();
        assert!(refused.contains("which holds something else than the number of a process, and stays; allowed are"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).expect("it stays"), "port 6379\n");
        std::fs::remove_file(&path).expect("our own");
        drop(PidFile::write("/dev/null".into()).expect("as a server would write it"));
        assert!(std::path::Path::new("/dev/null").exists());
        assert!(PidFile::write("/no/such/directory/x.pid".into()).is_err());
    }
}
