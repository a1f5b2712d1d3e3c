// Program commits checks commits by the rules of CONTRIBUTING.md:
//
//	go run ./tools/commits                 the commits of HEAD that the main branch does not have
//	go run ./tools/commits -message FILE   the commit that is being made, from git's hook commit-msg
//
// A clone that does not know its main branch, or is the main branch, is checked back to the commit in which the rules
// came. Older commits are never checked, nor is the oldest commit of a shallow clone.
//
//	message.go  the form of a message
//	changes.go  how many lines of code a commit changes
//	history.go  which commits are checked
package main

import (
	"flag"
	"fmt"
	"os"
)

// ruled is the last commit that was made without these rules, and its date for clones that do not have it.
var ruled = start{commit: "798790bf60c33bf62d4e134e04da5957bcbe76ed", date: 1795896853}

func main() {
	message := flag.String("message", "", "file with the message of a commit that is being made")
	flag.Parse()
	problems, err := check(repository{dir: "."}, *message)
	if err != nil {
		fmt.Fprintln(os.Stderr, "commits:", err)
		os.Exit(1)
	}
	for _, p := range problems {
		fmt.Fprintln(os.Stderr, p)
	}
	if len(problems) > 0 {
		fmt.Fprintln(os.Stderr, `CONTRIBUTING.md, "Commits", has the rules`)
		os.Exit(1)
	}
}

func check(r repository, message string) ([]string, error) {
	if message == "" {
		return r.history(ruled)
	}
	text, err := os.ReadFile(message)
	if err != nil {
		return nil, err
	}
	return r.next(string(text))
}
