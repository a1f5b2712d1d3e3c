package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// guestbook is an application of three tiers: the frontend writes entries to the leader and reads them from a follower,
// which asks the leader. It finds both by the names of their Services.
func guestbook(args []string) error {
	flags := flag.NewFlagSet("guestbook", flag.ExitOnError)
	address := flags.String("http", ":8080", "address to serve at")
	leader := flags.String("leader", "http://agnhost-primary:6379", "the leader's URL")
	follower := flags.String("follower", "http://agnhost-replica:6379", "the followers' URL")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	mux := http.NewServeMux()
	switch args[0] {
	case "leader":
		entries := &book{}
		mux.HandleFunc("POST /entries", entries.add)
		mux.HandleFunc("GET /entries", entries.list)
	case "follower":
		mux.HandleFunc("GET /entries", func(w http.ResponseWriter, _ *http.Request) {
			pass(w, *leader+"/entries", nil)
		})
	case "frontend":
		mux.HandleFunc("GET /guestbook", func(w http.ResponseWriter, r *http.Request) {
			if entry := r.URL.Query().Get("add"); entry != "" {
				pass(w, *leader+"/entries", url.Values{"entry": {entry}})
				return
			}
			pass(w, *follower+"/entries", nil)
		})
	default:
		return fmt.Errorf("%q is no role", args[0])
	}
	return (&http.Server{Addr: *address, Handler: mux, ReadHeaderTimeout: time.Minute}).ListenAndServe()
}

// pass passes on what another tier answers.
func pass(w http.ResponseWriter, to string, form url.Values) {
	client := http.Client{Timeout: 5 * time.Second}
	ask := func() (*http.Response, error) { return client.Get(to) }
	if form != nil {
		ask = func() (*http.Response, error) { return client.PostForm(to, form) }
	}
	response, err := ask()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	w.WriteHeader(response.StatusCode)
	_, _ = io.Copy(w, response.Body)
}

// book are the entries.
type book struct {
	mu      sync.Mutex
	entries []string
}

func (b *book) add(_ http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries = append(b.entries, r.PostFormValue("entry"))
}

func (b *book) list(w http.ResponseWriter, _ *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = io.WriteString(w, strings.Join(b.entries, "\n"))
}
