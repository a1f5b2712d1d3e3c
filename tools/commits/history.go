package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// maxCommits is how many commits are checked, the newest ones.
const maxCommits = 200

// mainBranches are the names of the branch that changes are made for, the first one that exists.
var mainBranches = []string{"refs/remotes/origin/HEAD", "refs/remotes/origin/main", "refs/heads/main"}

// start is where history begins to be checked: after a commit or, in clones without it, with commits of later dates.
type start struct {
	commit string
	date   int64 // in seconds of Unix
}

type repository struct{ dir string }

// git returns the output of a git command.
func (r repository) git(stdin string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stdin = r.dir, strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// find returns the hash of a commit by any of its names, or "" if the clone does not have it.
func (r repository) find(name string) string {
	out, err := r.git("", "rev-parse", "--verify", "--quiet", name+"^{commit}")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}

// history checks the commits of HEAD that the main branch does not have or, on the main branch, those after a start.
func (r repository) history(after start) ([]string, error) {
	args := []string{"rev-list", "--parents", "--max-count=" + strconv.Itoa(maxCommits), "HEAD"}
	if base := r.find(after.commit); base != "" {
		args = append(args, "^"+base)
	} else {
		args = append(args, "--since="+strconv.FormatInt(after.date+1, 10))
	}
	if base := r.fork(); base != "" {
		args = append(args, "^"+base)
	}
	list, err := r.git("", args...)
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(list) {
		commit := strings.Fields(line)
		found, err := r.commit(commit[0], len(commit)-1)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// fork returns the merge base of HEAD and the main branch, or "" if HEAD is part of it or it is not known.
func (r repository) fork() string {
	head := r.find("HEAD")
	for _, branch := range mainBranches {
		if r.find(branch) == "" {
			continue
		}
		base, err := r.git("", "merge-base", "HEAD", branch)
		if base = strings.TrimSpace(base); err == nil && base != head {
			return base
		}
		return "" // HEAD is on the main branch, or a shallow clone has nothing in common with it
	}
	return ""
}

// commit checks one commit with a number of parents.
func (r repository) commit(hash string, parents int) ([]string, error) {
	message, err := r.git("", "show", "--no-patch", "--format=%B", hash)
	if err != nil {
		return nil, err
	}
	subject, _, _ := strings.Cut(message, "\n")
	report := func(problems []string) []string {
		for i, p := range problems {
			problems[i] = fmt.Sprintf("%.12s %q: %s", hash, subject, p)
		}
		return problems
	}
	switch {
	case parents == 0: // an import of files from elsewhere, or the end of a shallow clone: it changes nothing
		return nil, nil
	case parents > 1:
		return report([]string{"a merge: rebase the branch instead"}), nil
	case autosquash.MatchString(subject):
		return report([]string{"run git rebase --autosquash"}), nil
	}
	found, err := problems(message, func() (int, error) {
		return r.changes("diff-tree", hash+"^", hash)
	})
	return report(found), err
}

// next checks the commit that is being made with a message, from which git has not removed its comments yet.
func (r repository) next(text string) ([]string, error) {
	if r.find("MERGE_HEAD") != "" {
		return []string{"a merge: rebase the branch instead"}, nil
	}
	var message strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, " ------------------------ >8 ------------------------") { // git commit --verbose
			break
		}
		message.WriteString(line)
	}
	cleaned, err := r.git(message.String(), "stripspace", "--strip-comments")
	if err != nil {
		return nil, err
	}
	if cleaned == "" || autosquash.MatchString(cleaned) {
		return nil, nil // git refuses an empty message itself
	}
	return problems(cleaned, func() (int, error) {
		if r.find("HEAD") == "" {
			return 0, nil
		}
		return r.changes("diff-index", "--cached", "HEAD")
	})
}

// changes returns how many lines of code differ, by one of git's commands that compare trees.
func (r repository) changes(compare string, trees ...string) (int, error) {
	options := []string{compare, "-r", "-p", "-M", "--unified=0", "--no-color", "--no-ext-diff", "--no-textconv",
		"--src-prefix=a/", "--dst-prefix=b/"}
	patch, err := r.git("", append(options, trees...)...)
	if err != nil {
		return 0, err
	}
	return changedLines(patch), nil
}
