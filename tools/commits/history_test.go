package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain removes git's variables, which the tests have if a hook runs them.
func TestMain(m *testing.M) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "GIT_") {
			os.Unsetenv(name)
		}
	}
	m.Run()
}

// house is a git repository of a test. Its commits are a minute apart.
type house struct {
	*testing.T
	repository
	minute int
}

func newHouse(t *testing.T) *house {
	h := &house{T: t, repository: repository{dir: t.TempDir()}}
	h.run("git", "init", "--quiet", "--initial-branch=main")
	return h
}

// run runs a command without the settings of this machine.
func (h *house) run(command ...string) string {
	h.Helper()
	out, err := h.try(command...)
	require.NoError(h, err, "%s\n%s", command, out)
	return strings.TrimSpace(out)
}

func (h *house) try(command ...string) (string, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = h.dir
	date := strconv.Itoa(1_700_000_000+60*h.minute) + " +0000"
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull, "GIT_EDITOR=true",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@a.example", "GIT_AUTHOR_DATE="+date,
		"GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@a.example", "GIT_COMMITTER_DATE="+date)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// write puts a file of some lines, all different, into the index.
func (h *house) write(name string, lines int) {
	var text strings.Builder
	for i := range lines {
		text.WriteString(name + " " + strconv.Itoa(i) + "\n")
	}
	h.put(name, text.String())
}

func (h *house) put(name, text string) {
	h.Helper()
	path := filepath.Join(h.dir, name)
	require.NoError(h, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(h, os.WriteFile(path, []byte(text), 0o644))
	h.run("git", "add", name)
}

// commit makes a commit that adds a file of some lines, and returns its hash.
func (h *house) commit(message string, lines int) string {
	h.Helper()
	h.minute++
	h.write("file"+strconv.Itoa(h.minute)+".go", lines)
	h.run("git", "commit", "--quiet", "--no-verify", "--message", message)
	return h.run("git", "rev-parse", "HEAD")
}

// checked returns the problems of the repository's history, and requires that there are so many, for these commits.
func (h *house) checked(after start, commits ...string) []string {
	h.Helper()
	found, err := h.history(after)
	require.NoError(h, err)
	require.Len(h, found, len(commits), "%q", found)
	for i, c := range commits {
		require.Contains(h, found[i], c[:12])
	}
	return found
}

// clone is a clone of the repository, of some depth if that is not 0.
func (h *house) clone(depth int) *house {
	c := &house{T: h.T, repository: repository{dir: h.TempDir()}, minute: h.minute}
	args := []string{"git", "clone", "--quiet"}
	if depth > 0 {
		args = append(args, "--depth", strconv.Itoa(depth))
	}
	c.run(append(args, "file://"+h.dir, ".")...)
	return c
}

func TestHistory_ChecksWhatAChangeAddsToTheMainBranch(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	root := h.commit("import of the code", 20)
	old := h.commit("older than the rules", 1)
	after := start{commit: old, date: 1_700_000_000 + 60*int64(h.minute)}
	h.checked(after)

	bad := h.commit("Bad on the main branch", 1)
	h.commit("api: count", 10)
	h.checked(after, bad)
	h.checked(start{commit: root}, bad, old)

	h.run("git", "switch", "--quiet", "--create", "change")
	h.checked(after, bad)
	silent := h.commit("api: count twice", 11)
	h.commit("api: count three times\n\nTwice is not enough.", 11)
	require.Contains(t, h.checked(after, silent)[0], "a body must say why")

	// Both branches go on: the merge-base decides.
	h.run("git", "switch", "--quiet", "main")
	other := h.commit("Bad on the main branch, too", 1)
	h.checked(after, other, bad)
	h.run("git", "switch", "--quiet", "change")
	h.checked(after, silent)

	h.minute++
	h.run("git", "merge", "--quiet", "--no-edit", "main")
	require.Contains(t, h.checked(after, h.run("git", "rev-parse", "HEAD"), silent)[0], "a merge: rebase")
	h.run("git", "reset", "--quiet", "--hard", "HEAD^")
	h.minute++
	h.write("more.go", 1)
	h.run("git", "commit", "--quiet", "--fixup", silent)
	require.Contains(t, h.checked(after, h.run("git", "rev-parse", "HEAD"), silent)[0], "autosquash")
}

func TestHistory_OfClonesWithoutAllCommits(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.commit("import of the code", 20)
	old := h.commit("older than the rules", 20)
	after := start{commit: old, date: 1_700_000_000 + 60*int64(h.minute)}
	first := h.commit("First bad one", 1)
	h.commit("api: count", 1)
	last := h.commit("Last bad one", 1)

	h.clone(0).checked(after, last, first)
	h.clone(4).checked(after, last, first) // the oldest commit that it has is the start
	h.clone(3).checked(after, last)        // the oldest one cannot be told from an import
	h.clone(1).checked(after)
	detached := h.clone(0)
	detached.run("git", "checkout", "--quiet", "--detach", "HEAD^")
	detached.checked(after, first)

	// Where the start was rewritten, dates decide.
	gone := start{commit: strings.Repeat("a", 40), date: after.date}
	h.clone(0).checked(gone, last, first)

	// A clone's branch is compared with the main branch of its origin.
	clone := h.clone(0)
	clone.run("git", "switch", "--quiet", "--create", "change")
	clone.checked(after, last, first)
	mine := clone.commit("Bad one of a change", 1)
	clone.checked(after, mine)
	clone.run("git", "switch", "--quiet", "main")
	mine = clone.commit("Bad one on a main branch that is ahead", 1)
	clone.checked(after, mine)

	// No folder but a repository can be checked.
	_, err := repository{dir: t.TempDir()}.history(after)
	require.ErrorContains(t, err, "git rev-list")
}

func TestHistory_MovesNeedNoReason(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	root := h.commit("import of the code", 30)
	h.minute++
	require.NoError(t, os.MkdirAll(filepath.Join(h.dir, "lib"), 0o755))
	h.run("git", "mv", "file1.go", "lib/file1.go")
	h.run("git", "commit", "--quiet", "--message", "lib: move the file")
	h.checked(start{commit: root})
	h.minute++
	h.write("docs/long.md", 100)
	h.run("git", "commit", "--quiet", "--message", "docs: describe the library")
	h.checked(start{commit: root})
}

// The hook refuses what the check of history would find later, and has nothing against commits that are to be joined.
func TestHook_RefusesACommit(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.put("go.mod", "module example.org/house\n\ngo 1.26\n")
	for _, name := range []string{"main.go", "message.go", "changes.go", "history.go"} {
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		h.put("tools/commits/"+name, string(source))
	}
	hook, err := os.ReadFile("../../.githooks/commit-msg")
	require.NoError(t, err)
	h.put(".githooks/commit-msg", string(hook))
	h.run("chmod", "755", ".githooks/commit-msg")
	h.run("git", "add", ".githooks/commit-msg")
	h.commit("import of the code", 1)
	h.run("git", "config", "core.hooksPath", ".githooks")

	refused := func(why string, command ...string) {
		t.Helper()
		h.minute++
		head := h.run("git", "rev-parse", "HEAD")
		out, err := h.try(command...)
		require.Error(t, err, out)
		require.Contains(t, out, why)
		require.Equal(t, head, h.run("git", "rev-parse", "HEAD"))
	}
	h.write("new.go", 11)
	refused("is not the imperative", "git", "commit", "-m", "api: counted")
	refused("a body must say why", "git", "commit", "-m", "api: count")
	refused("a body must say why", "git", "commit", "-m", "api: count", "-m", "Signed-off-by: A <a@a.example>")
	h.run("git", "commit", "--quiet", "-m", "api: count", "-m", "# is no comment here\nOne was missing.")
	h.write("more.go", 10)
	h.run("git", "commit", "--quiet", "-m", "api: count more")
	h.write("fix.go", 100)
	h.run("git", "commit", "--quiet", "--fixup", "HEAD")

	// What git writes into the message for the editor is no part of it.
	h.write("verbose.go", 11)
	template := filepath.Join(t.TempDir(), "message")
	require.NoError(t, os.WriteFile(template, []byte("api: count all\n"), 0o600))
	refused("a body must say why", "git", "-c", "commit.verbose=true", "commit", "--edit", "--file", template)

	h.run("git", "reset", "--quiet", "--hard")
	h.run("git", "switch", "--quiet", "--create", "side", "HEAD^")
	h.run("git", "commit", "--quiet", "--allow-empty", "-m", "api: count nothing")
	refused("a merge: rebase", "git", "merge", "--no-edit", "main")
}
