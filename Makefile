# What a contributor runs. Needs Go, make and git; nothing else is fetched but Go modules.

VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# The shipped binaries are static and the same wherever they are built.
GOBUILD := go build -ldflags "-s -w -X github.com/coxswain-dev/coxswain/apiserver.Version=v1.37.2+coxswain.$(VERSION)"

# All that needs no race detector is compiled with the same flags: the binaries and the black-box tests then
# share one build of every package, which is most of what they take on a fresh machine. So do lint and the tests
# with the race detector. go test vets nothing: for that it would look at every package that is imported, and
# make lint has done so. Nobody debugs these builds, and without DWARF an eighth of the compiler's work is left out.
FASTER := -vet=off -gcflags=all=-dwarf=false
build e2e parity kubectl helm extensions operator upstream platforms bench soak fuzz lint size: export CGO_ENABLED := 0
build e2e parity kubectl helm extensions operator upstream platforms bench soak fuzz lint size: export GOFLAGS := $(GOFLAGS) -trimpath $(FASTER)

# The race detector needs a C compiler; without one the tests run all the same.
RACE := $(shell command -v $$(go env CC) >/dev/null 2>&1 && echo -race)

# ASTESTS has lint compile what it looks at as make test does.
ASTESTS := CGO_ENABLED=$(if $(RACE),1,0) GOFLAGS="$(RACE) $(FASTER)"

.DEFAULT_GOAL := help

.PHONY: help
help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/coxswain and bin/kubectl-lite, static
	@test -x bin/coxswain || echo "The first build compiles etcd and Kubernetes' client libraries: it takes some minutes, later ones seconds."
	$(GOBUILD) -o bin/ ./cmd/...

.PHONY: up
up: build ## build, then run a control plane in the foreground, data in ./.coxswain (ARGS has its flags)
	@exec bin/coxswain up --data-dir ./.coxswain $(ARGS)

.PHONY: assets
assets: build ## bin/assets: etcd, kube-apiserver and kubectl for suites that use envtest (KUBEBUILDER_ASSETS)
	@bin/coxswain assets bin/assets

.PHONY: demo
demo: build ## run the tour of examples/ on a control plane of its own, then end it
	@COXSWAIN=bin/coxswain KUBECTL="$(KUBECTL)" sh examples/demo.sh

.PHONY: test
test: ## unit and integration tests, with the race detector; what make lint tests is left out
	go test $(RACE) $(FASTER) -timeout 20m $$(go list ./... | grep -v '/coxswain/test$$')

# COUNT is how often; FLAKY is what lives by clocks and watches, where a test may hang on the order of two events.
COUNT ?= 10
FLAKY ?= ./controllers/... ./scheduler/... ./node/... ./storage/... ./apiserver/...

.PHONY: flaky
flaky: ## look for tests that fail by chance: each COUNT times, with the race detector, beside as many busy loops as cores
	@for i in $$(seq $$(getconf _NPROCESSORS_ONLN)); do sh -c 'while :; do :; done' & load="$$load $$!"; done; \
		trap "kill $$load" EXIT; trap 'exit 130' INT TERM; \
		go test $(RACE) -count=$(COUNT) -timeout 4h $(FLAKY)

.PHONY: e2e
e2e: build parity helm extensions operator upstream ## black-box tests: real kubectl and Helm, curl, kill -9, external etcd, compose
	KUBECONFIG= COXSWAIN_BIN=$(CURDIR)/bin EXTENSIONS=$(CURDIR)/.tools HELM="$(or $(HELM),$(CURDIR)/.tools/helm)" KUBECTL="$(or $(KUBECTL),$(shell command -v kubectl || echo $(CURDIR)/.tools/kubectl))" \
		go test -tags e2e -p 1 -count=1 -timeout 30m -v ./test/...

# FUZZTIME is how long each target is fuzzed; FUZZ chooses packages.
FUZZTIME ?= 10s
FUZZ ?= .

.PHONY: fuzz
fuzz: ## fuzz every target for FUZZTIME each, one per core at once (FUZZ=./apiserver/patch for some alone)
	@FUZZTIME=$(FUZZTIME) sh .ci/fuzz $(FUZZ)

.PHONY: parity
parity: kubectl ## check the recording of kubectl that kubectl-lite is tested against (ARGS=-record renews it)
	KUBECTL=$(CURDIR)/.tools/kubectl go test -tags e2e -count=1 -v -run TestParity_Recording ./kubectl-lite $(ARGS)

.PHONY: soak
soak: build ## an hour of faults: 100 kills, pauses and cut-offs, and informers of every client-go release
	COXSWAIN_SOAK=100 COXSWAIN_BIN=$(CURDIR)/bin go test -tags e2e -count=1 -timeout 60m -v ./test/linearizability
	COMPAT_CLIENT_GO=v0.32.0,v0.33.0,v0.34.0,v0.35.0,v0.36.0,v0.37.2 go test -tags e2e -count=1 -timeout 60m -v ./test/compat

# The real kubectl, always the release of test/kubectl/go.mod: another's output may differ.
.PHONY: kubectl
kubectl:
	cd test/kubectl && go build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2" -o ../../.tools/kubectl .

# The real Helm, always the release of test/helm/go.mod: another's output may differ.
.PHONY: helm
helm:
	@test -n "$(HELM)" || test -x .tools/helm || { set -x; \
		cd test/helm && go build -ldflags "-s -w" -o ../../.tools/helm helm.sh/helm/v3/cmd/helm; }

# API servers of others, of the releases of test/extensions/go.mod. The first build takes minutes.
.PHONY: extensions
extensions: ## Kubernetes' sample-apiserver, metrics-server, and an adapter of external metrics
	cd test/extensions && go build -ldflags "-s -w" -o ../../.tools/ tool ./adapter

# The example is a module of its own, as an operator is; ./... of this one leaves it out.
.PHONY: operator
operator: assets .tools/lint ## check examples/operator, and test it three ways: testenv, envtest with our assets, from Python
	cd examples/operator && $(ASTESTS) ../../.tools/lint ./... && go test -count=1 ./...
	cd examples/operator && KUBEBUILDER_ASSETS=$(CURDIR)/bin/assets COXSWAIN_ASSETS=full go test -count=1 ./...
	cd examples/operator && go build -o ../../.tools/operator .
	@if command -v python3 >/dev/null; then set -x; cd examples/operator && \
		COXSWAIN=$(CURDIR)/bin/coxswain OPERATOR=$(CURDIR)/.tools/operator python3 -m unittest test_operator; \
		else echo "SKIPPED: no python3: the example operator is not tested from Python"; fi

# UPSTREAM are packages of controller-runtime, of the release of test/upstream/go.mod. Those that take a minute each, as
# they wait for time-outs of their own, are left to those who name them: make upstream UPSTREAM="manager cache".
UPSTREAM ?= envtest client builder webhook cluster source controller/controllerutil

.PHONY: upstream
upstream: assets ## controller-runtime's own suites, unmodified, with our assets in the place of envtest's
	cd test/upstream && KUBEBUILDER_ASSETS=$(CURDIR)/bin/assets \
		go test -count=1 $(addprefix sigs.k8s.io/controller-runtime/pkg/,$(UPSTREAM))

# What is Linux only is behind build constraints. Windows is left out: the server needs file locks and signals of Unix.
PLATFORMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64

.PHONY: platforms
platforms: ## go vet of all that ships, for every platform of a release; each is compiled anew
	@for p in $(PLATFORMS); do (set -x; GOOS=$${p%/*} GOARCH=$${p#*/} go vet ./cmd/... ./testenv/... ./release) || exit 1; done

# Reproducible: the same commit and the same Go make the same bytes. Each platform is compiled anew, which takes minutes.
.PHONY: release
release: ## dist: archives for Linux and macOS, envtest's assets with their index, checksums and SBOM (RELEASE has flags)
	go run ./release -out dist $(RELEASE)

.PHONY: bench
bench: build ## the load generator on servers of its own (BENCH has its flags), then the Go benchmarks, short
	go run ./bench $(BENCH)
	go test -run '^$$' -bench . -benchtime 200ms -benchmem ./...

.PHONY: lint
lint: .tools/lint ## gofmt, the analyzers of go vet and staticcheck, and the floors of the architecture
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "gofmt -l:"; echo "$$unformatted"; exit 1; }
	$(ASTESTS) .tools/lint -tags e2e ./...
	go test -count=1 ./test

.PHONY: .tools/lint
.tools/lint:
	cd test/lint && go build -o ../../.tools/lint .

.PHONY: size
size: build ## what each binary weighs, and what each direct dependency adds
	@ls -l bin | awk 'NR > 1 {printf "%8.1f MB  bin/%s\n", $$5 / 1e6, $$NF}'
	@go run ./test/size ./cmd/coxswain
	@go run ./test/size ./cmd/kubectl-lite
