//! The cache: what a boot needs, made from the unpacked packages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::cpio::Archive;
use super::packages;

/// The guest's first program.
const INIT: &str = include_str!("init.sh");
/// Kernel modules that the guest loads, in this order, with everything that they depend on. `rdma_rxe` computes checksums through `crc32_generic`, without
/// declaring that it depends on it.
const MODULES: [&str; 13] = [
    "virtio_pci",
    "virtio_net",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_console",
    "virtio-rng",
    "ib_uverbs",
    "rdma_ucm",
    "crc32_generic",
    "rdma_rxe",
    "sch_netem",
    "veth",
];
/// The names under which the guest's shell can be run.
const APPLETS: [&str; 9] = ["sh", "mount", "umount", "insmod", "mkdir", "cat", "poweroff", "chroot", "ln"];

/// The paths of a finished cache.
#[derive(Clone, Debug)]
pub struct Image {
    /// The kernel, as QEMU boots it.
    pub kernel: PathBuf,
    /// The initial RAM disk.
    pub ramdisk: PathBuf,
    /// QEMU, and what the guest has besides this machine's files.
    pub tools: PathBuf,
    /// The cache as a whole.
    pub root: PathBuf,
}

impl Image {
    /// Makes the cache below `root`, unless it exists.
    ///
    /// # Errors
    /// The reason why it cannot be made here.
    pub fn ready(root: &Path) -> Result<Image, String> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err(format!("only on Linux on x86_64, not on {} on {}", std::env::consts::OS, std::env::consts::ARCH));
        }
        let stamp = root.join("stamp");
        let wanted = packages::description();
        if fs::read_to_string(&stamp).ok().as_deref() != Some(&wanted) {
            // Made beside it, and moved into place when complete: an interrupted run leaves no partial cache, and two runs at once do not mix.
            let fresh = root.with_extension(format!("new-{}", std::process::id()));
            let made = make(&fresh, &wanted).and_then(|()| replace(&fresh, root));
            if let Err(error) = made {
                let _ = fs::remove_dir_all(&fresh);
                return Err(error);
            }
        }
        let tools = root.join("tools");
        let ramdisk = root.join("ramdisk.cpio");
        // The guest's first steps depend on this program's version, not on the packages'.
        write_ramdisk(&root.join("kernel"), &tools, &ramdisk)?;
        Ok(Image { kernel: root.join("vmlinux"), ramdisk, tools, root: root.to_path_buf() })
    }
}

fn make(fresh: &Path, stamp: &str) -> Result<(), String> {
    fs::create_dir_all(fresh).map_err(|e| format!("cannot make {}: {e}", fresh.display()))?;
    packages::fetch(fresh)?;
    let boot = fresh.join("kernel/boot");
    let packed = find(&boot, "vmlinuz-").ok_or_else(|| format!("no kernel in {}", boot.display()))?;
    let packed = fs::read(&packed).map_err(|e| format!("cannot read {}: {e}", packed.display()))?;
    let kernel = payload(&packed).ok_or("the kernel is no bzImage")?;
    let kernel = unpack(&fresh.join("tools"), kernel)?;
    write(&fresh.join("vmlinux"), &kernel)?;
    write(&fresh.join("stamp"), stamp.as_bytes())
}

fn replace(fresh: &Path, root: &Path) -> Result<(), String> {
    if root.exists() {
        fs::remove_dir_all(root).map_err(|e| format!("cannot remove {}: {e}", root.display()))?;
    }
    fs::rename(fresh, root).map_err(|e| format!("cannot move {} to {}: {e}", fresh.display(), root.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn find(dir: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?.filter_map(Result::ok);
    entries.map(|entry| entry.path()).find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
}

/// The compressed kernel inside a bzImage (Linux's boot protocol 2.08). Unpacking it once here spares every boot that work, which takes seconds under
/// emulation.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let setup_sectors = usize::from(*image.get(0x1f1)?);
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let field = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let start = (setup_sectors + 1) * 512 + field(0x248)?;
    image.get(start..start.checked_add(field(0x24c)?)?)
}

/// Unpacks with `xz`, whether the input is xz or lzma.
fn unpack(tools: &Path, packed: &[u8]) -> Result<Vec<u8>, String> {
    use std::io::Write as _;
    let trouble = |e: std::io::Error| format!("cannot unpack with xz: {e}");
    let mut command = Command::new(packages::program(tools, "xz"));
    command.args(["--decompress", "--stdout", "--single-stream"]).env("LD_LIBRARY_PATH", libraries(tools));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(trouble)?;
    let mut input = child.stdin.take().expect("piped");
    let output = std::thread::scope(|scope| {
        // `xz` may stop reading before the end. Its own result counts, not that of this write.
        scope.spawn(move || drop(input.write_all(packed)));
        child.wait_with_output()
    })
    .map_err(trouble)?;
    if output.stdout.is_empty() {
        return Err(format!("cannot unpack with xz: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(output.stdout)
}

/// The path on which the unpacked programs find their libraries.
pub fn libraries(tools: &Path) -> String {
    let base = tools.join("usr/lib/x86_64-linux-gnu");
    base.display().to_string()
}

fn write_ramdisk(kernel: &Path, tools: &Path, to: &Path) -> Result<(), String> {
    let modules = find(&kernel.join("lib/modules"), "").or_else(|| find(&kernel.join("usr/lib/modules"), ""));
    let modules = Modules::below(&modules.ok_or("the kernel's package holds no modules")?)?;
    let shell = tools.join("usr/bin/busybox");
    let shell = fs::read(&shell).map_err(|e| format!("cannot read {}: {e}", shell.display()))?;
    let mut archive = Archive::default();
    for dir in ["bin", "dev", "proc", "sys", "root", "tools", "job", "scratch", "new", "modules"] {
        archive.directory(dir);
    }
    archive.file("init", INIT.as_bytes());
    archive.file("bin/busybox", &shell);
    for applet in APPLETS {
        archive.link(&format!("bin/{applet}"), "busybox");
    }
    let mut order = String::new();
    for module in modules.in_order(&MODULES)? {
        let path = &modules.files[module].path;
        let bytes = fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let bytes = if path.extension().is_some_and(|e| e == "xz") { unpack(tools, &bytes)? } else { bytes };
        let name = &modules.files[module].name;
        archive.file(&format!("modules/{name}.ko"), &bytes);
        order.push_str(name);
        order.push('\n');
    }
    archive.file("modules/order", order.as_bytes());
    // Another run may be reading the file.
    let fresh = to.with_extension(format!("new-{}", std::process::id()));
    write(&fresh, &archive.finish())?;
    fs::rename(&fresh, to).map_err(|e| format!("cannot write {}: {e}", to.display()))
}

/// The file of a kernel module.
#[derive(Debug)]
struct ModuleFile {
    name: String,
    path: PathBuf,
}

/// The modules of one kernel.
#[derive(Debug)]
struct Modules {
    files: Vec<ModuleFile>,
    builtin: BTreeSet<String>,
}

/// Module names may use either of the two characters.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// The name of the module in a file.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".xz").unwrap_or(name);
    Some(plain(name.strip_suffix(".ko")?))
}

impl Modules {
    fn below(dir: &Path) -> Result<Modules, String> {
        let mut files = Vec::new();
        let mut open = vec![dir.to_path_buf()];
        while let Some(dir) = open.pop() {
            for entry in fs::read_dir(&dir).map_err(|e| format!("cannot list {}: {e}", dir.display()))?.filter_map(Result::ok) {
                let path = entry.path();
                if path.is_dir() {
                    open.push(path);
                } else if let Some(name) = module_name(&path) {
                    files.push(ModuleFile { name, path });
                }
            }
        }
        let builtin = fs::read_to_string(dir.join("modules.builtin")).unwrap_or_default();
        let builtin = builtin.lines().filter_map(|line| module_name(Path::new(line))).collect();
        Ok(Modules { files, builtin })
    }

    /// The positions of the modules in `files`, each after those that it depends on.
    fn in_order(&self, wanted: &[&str]) -> Result<Vec<usize>, String> {
        let mut order = Vec::new();
        for name in wanted {
            self.append(&plain(name), &mut order)?;
        }
        Ok(order)
    }

    fn append(&self, name: &str, order: &mut Vec<usize>) -> Result<(), String> {
        if self.builtin.contains(name) {
            return Ok(());
        }
        let at = self.files.iter().position(|file| file.name == name).ok_or_else(|| format!("the kernel has no module {name}"))?;
        if order.contains(&at) {
            return Ok(());
        }
        let path = &self.files[at].path;
        let bytes = fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        for dependency in dependencies(&bytes) {
            self.append(&dependency, order)?;
        }
        order.push(at);
        Ok(())
    }
}

/// The modules that a module declares that it depends on: the entry `depends=a,b` of its `.modinfo`, which is a list of NUL-terminated texts.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value).split(',').filter(|name| !name.is_empty()).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_cut_out_of_the_image() {
        let mut image = vec![0; 4096];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&100u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&7u32.to_le_bytes());
        image[1124..1131].copy_from_slice(b"payload");
        assert_eq!(payload(&image), Some(&b"payload"[..]));
        assert_eq!(payload(&image[..1128]), None, "cut off");
        image[0x202] = 0;
        assert_eq!(payload(&image), None, "no boot protocol");
    }

    #[test]
    fn modules_come_behind_what_they_depend_on() {
        assert_eq!(dependencies(b"\x7fELF\0license=GPL\0depends=ib_core,udp-tunnel\0name=x\0"), ["ib_core", "udp_tunnel"]);
        assert!(dependencies(b"\0depends=\0").is_empty());
        let dir = std::env::temp_dir().join(format!("martlet-modules-{}", std::process::id()));
        fs::create_dir_all(dir.join("kernel")).expect("made");
        for (name, depends) in [("top", "left,right-side"), ("left", "base"), ("right-side", "base,inside"), ("base", "")] {
            fs::write(dir.join(format!("kernel/{name}.ko")), format!("\0depends={depends}\0")).expect("written");
        }
        fs::write(dir.join("modules.builtin"), "kernel/inside.ko\n").expect("written");
        let modules = Modules::below(&dir).expect("read");
        let order = modules.in_order(&["base", "top"]).expect("all there");
        let names: Vec<_> = order.iter().map(|at| modules.files[*at].name.as_str()).collect();
        assert_eq!(names, ["base", "left", "right_side", "top"]);
        assert_eq!(modules.in_order(&["none"]).expect_err("missing"), "the kernel has no module none");
        fs::remove_dir_all(&dir).expect("removed");
    }
}
