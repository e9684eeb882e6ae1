// copy DEST: what the carrier image's init container runs. It copies the agent's tree, which lies beside this program,
// into DEST, as the manifest lists it, and checks every file against it.
//
// Init containers are started again whenever their Pod's sandbox is, so DEST may hold an older, a half or a whole copy,
// and a hook may be reading it: each file is written beside its place and renamed into it.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

const (
	manifestName = "manifest"
	factsName    = "build.json"
	// The same in every run, so that what a killed run left is taken over by the next.
	unfinished = ".copying"
	folderMode = 0o755
	// Of a folder that was made and is not done: a run that is killed right then leaves it so.
	undoneMode = 0o700
	fileMode   = 0o644
)

type file struct {
	sha256 string
	mode   os.FileMode
	path   string
}

func main() {
	started := time.Now()
	debug.SetGCPercent(-1) // it ends before it holds much
	if len(os.Args) != 2 || os.Args[1] == "" {
		fmt.Fprintln(os.Stderr, "copy: usage: copy DEST")
		os.Exit(2)
	}
	if err := run(ownFolder(), os.Args[1], started); err != nil {
		fmt.Fprintln(os.Stderr, "copy: "+err.Error())
		os.Exit(1)
	}
}

func ownFolder() string {
	program, err := os.Executable() // reads /proc
	if err != nil {
		program = os.Args[0]
	}
	return filepath.Dir(program)
}

func run(source, dest string, started time.Time) error {
	text, err := os.ReadFile(filepath.Join(source, manifestName))
	if err != nil {
		return err
	}
	files, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(source, manifestName), err)
	}
	version, err := agentVersion(source)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dest, folderMode); err != nil {
		return err
	}
	older := listed(filepath.Join(dest, manifestName))
	to := &destination{root: dest, folders: map[string]bool{".": true}, buffer: make([]byte, 1<<18)}
	var size int64
	for _, one := range files {
		written, err := to.copy(source, one)
		if err != nil {
			return err
		}
		size += written
		delete(older, one.path)
	}
	for name := range older {
		if err := to.remove(name); err != nil {
			return err
		}
	}
	// Last: until here the older manifest says what may have to be removed.
	_, err = to.write(manifestName, fileMode, bytes.NewReader(text), func() error { return nil })
	if err != nil {
		return err
	}
	fmt.Printf("copy: drainagent %s: %d files, %d bytes in %s after %d ms\n",
		version, len(files)+1, size+int64(len(text)), dest, time.Since(started).Milliseconds())
	return nil
}

// parse reads a manifest: one line a file, its sha256, mode and path.
func parse(text []byte) ([]file, error) {
	var files []file
	if len(text) == 0 || text[len(text)-1] != '\n' {
		return nil, errors.New("is cut short")
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for number := 1; lines.Scan(); number++ {
		fields := strings.SplitN(lines.Text(), " ", 3)
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %d is not sha256, mode and path", number)
		}
		mode, err := strconv.ParseUint(fields[1], 8, 32)
		if err != nil || mode > 0o777 || len(fields[0]) != 2*sha256.Size || !stays(fields[2]) {
			return nil, fmt.Errorf("line %d is not sha256, mode and path", number)
		}
		files = append(files, file{fields[0], os.FileMode(mode), fields[2]})
	}
	return files, lines.Err()
}

// stays tells whether a path leads to a place inside the folder that it is relative to.
func stays(name string) bool {
	return name != "." && name == path.Clean(name) && !path.IsAbs(name) && name != ".." && !strings.HasPrefix(name, "../")
}

// listed is what an older copy's manifest lists; nothing when there is none that can be read.
func listed(name string) map[string]bool {
	found := map[string]bool{}
	text, err := os.ReadFile(name)
	if err != nil {
		return found
	}
	files, err := parse(text)
	if err != nil {
		return found
	}
	for _, one := range files {
		found[one.path] = true
	}
	return found
}

func agentVersion(source string) (string, error) {
	name := filepath.Join(source, factsName)
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	var facts struct{ Agent string }
	if err := json.Unmarshal(text, &facts); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return facts.Agent, nil
}

type destination struct {
	root    string
	folders map[string]bool // whether what has this path is a folder, and no link to one
	buffer  []byte
}

// copy brings one file to its place; what was there stays until the new one is whole and as listed.
func (d *destination) copy(source string, one file) (int64, error) {
	from, err := openForReading(filepath.Join(source, one.path))
	if err != nil {
		return 0, err
	}
	defer from.close()
	hash := sha256.New()
	return d.write(one.path, one.mode, io.TeeReader(from, hash), func() error {
		if found := hex.EncodeToString(hash.Sum(nil)); found != one.sha256 {
			return fmt.Errorf("%s is not what the manifest lists: its sha256 is %s, not %s", from.name, found, one.sha256)
		}
		return nil
	})
}

func (d *destination) write(name string, mode os.FileMode, from io.Reader, verify func() error) (int64, error) {
	if err := d.makeFolder(path.Dir(name)); err != nil {
		return 0, err
	}
	place := filepath.Join(d.root, name)
	temporary := place + unfinished
	written, err := d.fill(temporary, mode, from)
	if err == nil {
		err = verify()
	}
	if err == nil {
		err = replace(temporary, place)
	}
	if err != nil {
		_ = os.Remove(temporary)
	}
	return written, err
}

func (d *destination) fill(name string, mode os.FileMode, from io.Reader) (int64, error) {
	to, err := createAnew(name)
	if err != nil {
		return 0, err
	}
	written, err := io.CopyBuffer(to, from, d.buffer)
	if err == nil {
		err = to.chmod(mode) // after the umask
	}
	if closed := to.close(); err == nil {
		err = closed
	}
	return written, err
}

func replace(temporary, place string) error {
	err := rename(temporary, place)
	if err == nil {
		return nil
	}
	if there, statErr := os.Lstat(place); statErr != nil || !there.IsDir() {
		return err
	}
	if err := os.RemoveAll(place); err != nil {
		return err
	}
	return rename(temporary, place)
}

// makeFolder makes a folder of the copy and those above it, in the place of what is there and is none.
func (d *destination) makeFolder(name string) error {
	if d.isFolder(name) {
		return nil
	}
	if err := d.makeFolder(path.Dir(name)); err != nil {
		return err
	}
	place := filepath.Join(d.root, name)
	if err := os.Remove(place); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(place, undoneMode); err != nil {
		return err
	}
	d.folders[name] = true
	return os.Chmod(place, folderMode)
}

func (d *destination) isFolder(name string) bool {
	is, known := d.folders[name]
	if !known {
		there, err := os.Lstat(filepath.Join(d.root, name))
		is = err == nil && there.IsDir()
		if is && name != "." && there.Mode().Perm() == undoneMode {
			_ = os.Chmod(filepath.Join(d.root, name), folderMode) // not ours: it stays as it is
		}
		d.folders[name] = is
	}
	return is
}

// remove takes away what an older copy left, and the folders that it leaves empty.
func (d *destination) remove(name string) error {
	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		if !d.isFolder(above) {
			return nil
		}
	}
	if d.isFolder(name) {
		return nil
	}
	if err := os.Remove(filepath.Join(d.root, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		if os.Remove(filepath.Join(d.root, above)) != nil {
			return nil // something is left in it
		}
		d.folders[above] = false
	}
	return nil
}
