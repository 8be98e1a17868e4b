// The reference page of the Go package, on the standard output: its exported declarations and their comments. `scripts/reference.py` runs
// this program with the directory of the package.
package main

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/format"
	"go/parser"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"strings"
	"unicode"
)

const introduction = `This page is made from the comments of [the Go package](../../bindings/go/README.md). See also
[first steps](../first-steps/go.md), and [choosing a recipe](../choosing.md).`

func main() {
	page := page{files: token.NewFileSet()}
	page.read(os.Args[1])
	fmt.Printf("# Go reference\n\n%s\n\n", introduction)
	page.text(page.Doc)
	fmt.Print("## Functions\n\n")
	page.functions("", page.Funcs)
	page.values(page.Consts)
	page.values(page.Vars)
	fmt.Print("## Types\n\n")
	for _, one := range page.Types {
		fmt.Printf("### %s\n\n", one.Name)
		page.code(one.Decl)
		page.text(one.Doc)
		page.values(one.Consts)
		page.values(one.Vars)
		page.functions("", one.Funcs)
		page.functions(one.Name+".", one.Methods)
	}
}

type page struct {
	*doc.Package
	files *token.FileSet
}

// read parses the package, without its tests and without the file that other systems use.
func (p *page) read(directory string) {
	names, err := filepath.Glob(filepath.Join(directory, "*.go"))
	check(err)
	var parsed []*ast.File
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") && filepath.Base(name) != "unsupported.go" {
			file, err := parser.ParseFile(p.files, name, nil, parser.ParseComments)
			check(err)
			parsed = append(parsed, file)
		}
	}
	p.Package, err = doc.NewFromFiles(p.files, parsed, "zklock")
	check(err)
}

func (p *page) functions(prefix string, functions []*doc.Func) {
	for _, one := range functions {
		fmt.Printf("#### %s%s\n\n", prefix, one.Name)
		p.code(one.Decl)
		p.text(one.Doc)
	}
}

func (p *page) values(values []*doc.Value) {
	for _, one := range values {
		p.code(one.Decl)
		p.text(one.Doc)
	}
}

func (p *page) code(declaration ast.Decl) {
	fmt.Println("```go")
	check(format.Node(os.Stdout, p.files, declaration))
	fmt.Print("\n```\n\n")
}

func (p *page) text(text string) {
	printer := p.Printer()
	printer.HeadingLevel = 2
	printer.HeadingID = func(*comment.Heading) string { return "" }
	printer.DocLinkURL = p.target
	fmt.Printf("%s\n", printer.Markdown(p.Parser().Parse(text)))
}

// target returns the heading of a name, or that of its type if the name is a field. Other names have no heading.
func (p *page) target(link *comment.DocLink) string {
	for _, one := range p.Types {
		for _, function := range one.Funcs {
			if link.Recv == "" && function.Name == link.Name {
				return "#" + anchor(link.Name)
			}
		}
		for _, method := range one.Methods {
			if link.Recv == one.Name && method.Name == link.Name {
				return "#" + anchor(link.Recv+link.Name)
			}
		}
		if one.Name == link.Recv || one.Name == link.Name {
			return "#" + anchor(one.Name)
		}
	}
	for _, function := range p.Funcs {
		if link.Recv == "" && function.Name == link.Name {
			return "#" + anchor(link.Name)
		}
	}
	return ""
}

// anchor returns the anchor of a heading, as mdBook makes it.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' {
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
